"""The life of `svc serve`, from its checks to its last log line, in one place."""

from __future__ import annotations

import gc
import logging
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import trio
from hypercorn.config import Config

from svc import events, logs
from svc.artifact.keys import SigningKeys, development_keys, parse_signing_keys
from svc.artifact.store import Store, open_store
from svc.errors import ConfigError
from svc.metrics import Metrics
from svc.model.threads import limit_blas_threads
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.serving import bind, connections, signals
from svc.serving.app import build_app
from svc.serving.auth import HASHING_THREADS, Authenticator, parse_api_keys
from svc.serving.discovery import RecipeFolder
from svc.serving.lanes import Lane
from svc.serving.loader import Loader
from svc.serving.publish import Publisher
from svc.serving.registry import Registry
from svc.serving.signals import Stop, run_until
from svc.serving.state import ServerState
from svc.serving.threads import SWITCH_INTERVAL_S, ScoringThreads
from svc.serving.watch import Watcher
from svc.settings import Settings

if TYPE_CHECKING:
    import socket

    from hypercorn.typing import ASGIFramework

    from svc.model.model import Model

UNSAFE_WARNING_INTERVAL_S = 300.0
FULL_COLLECTION_EVERY = 100
"""Collections of the middle generation: one of all objects stops the loop for 0.2 s with 10,000 connections."""
LEAVE_TAKING_S = 0.2
CLOSING_S = 1.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line says. `dev_allow_unsigned` and `insecure_no_auth` have passed their gates."""

    recipes_dir: Path
    host: str
    port: int
    insecure_no_auth: bool = False
    dev_allow_unsigned: bool = False

    @property
    def unsafe_modes(self) -> tuple[str, ...]:
        modes = {"dev_allow_unsigned": self.dev_allow_unsigned, "insecure_no_auth": self.insecure_no_auth}
        return tuple(name for name, on in modes.items() if on)


def serve(options: ServeOptions, settings: Settings, variables: Mapping[str, str]) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code. Raises `ConfigError` before anything is served."""
    if settings.max_payload_bytes > settings.max_artifact_bytes:
        raise ConfigError("SVC_MAX_PAYLOAD_BYTES is larger than SVC_MAX_ARTIFACT_BYTES: lower it or raise the other")
    keys = _signing_keys(options, settings)
    api_keys = parse_api_keys(settings.api_keys)
    bind.check_exposure(options.host, has_api_keys=bool(api_keys), insecure_no_auth=options.insecure_no_auth)
    _check_folder(options.recipes_dir)
    counters = Metrics.create() if settings.metrics_enabled else Metrics.disabled()
    listener = bind.bind(options.host, options.port, unread_timeout_s=settings.client_timeout_s)
    _tune_process()
    logs.emit(
        events.SECURITY_POSTURE,
        signing_keys=keys.fingerprints(),
        api_keys_configured=len(api_keys),
        env=settings.env,
        unsafe_modes=options.unsafe_modes,
    )
    auth = Authenticator(api_keys, trio.CapacityLimiter(HASHING_THREADS), log_each_bypass=settings.log_level == "debug")
    state = ServerState(Registry(), settings, counters, auth)
    loader = Loader(settings, keys, variables)
    try:
        return trio.run(_live, options, state, loader, listener)
    except BaseExceptionGroup as group:
        raise connections.single(group) from None


def _tune_process() -> None:
    """Short turns for the event loop, seldom a full collection, one thread an array operation, all files allowed."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_EVERY)
    limit_blas_threads(1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _check_folder(recipes_dir: Path) -> None:
    try:
        next(recipes_dir.iterdir(), None)
    except OSError as error:
        raise ConfigError(f"the recipes folder {recipes_dir} cannot be listed: {error.strerror}") from None


def _signing_keys(options: ServeOptions, settings: Settings) -> SigningKeys:
    keys = parse_signing_keys(settings.signing_keys)
    if options.dev_allow_unsigned:
        return keys.with_development() if keys else development_keys()
    if not keys:
        raise ConfigError(
            "SVC_SIGNING_KEYS is empty, so no artifact can be verified: give the keys that `svc train` signs with"
        )
    return keys


async def _live(options: ServeOptions, state: ServerState, loader: Loader, listener: socket.socket) -> int:
    """The order of start and stop. Each inner nursery ends before the one around it."""
    stop = Stop()
    async with trio.open_nursery() as process:
        await process.start(signals.listen, stop, signals.exit_now)
        async with trio.open_nursery() as lanes:
            watcher = _watcher(options, state, loader, lanes)
            if await _started(watcher, stop):
                process.start_soon(_end_drain, stop, state.settings.drain_s)
                async with trio.open_nursery() as background:
                    background.start_soon(run_until, stop.event.wait, watcher.run)
                    background.start_soon(run_until, stop.event.wait, partial(_warn_of, options.unsafe_modes))
                    await _answer(state, listener, stop)
            lanes.cancel_scope.cancel()
        _say_shutdown(stop)
        process.cancel_scope.cancel()
    return 0


def _watcher(options: ServeOptions, state: ServerState, loader: Loader, lanes: trio.Nursery) -> Watcher:
    settings = state.settings
    threads = ScoringThreads.of(settings)
    trio.lowlevel.add_instrument(threads)

    async def start_lane(model: Model) -> Lane:
        lane = Lane(model, threads)
        await lanes.start(lane.run)
        return lane

    parse = partial(load_recipe, variables=loader.variables, settings=settings, for_serving=True)
    return Watcher(
        folder=RecipeFolder(options.recipes_dir, parse),
        open_store=partial(_store_of, settings=settings),
        loader=loader,
        publisher=Publisher(state.registry, start_lane, state.metrics),
        settings=settings,
        metrics=state.metrics,
    )


def _store_of(loaded: LoadedRecipe, *, settings: Settings) -> Store:
    """The store of a recipe's artifact."""
    return open_store(loaded.output_uri, settings, label=loaded.recipe.name)


async def _started(watcher: Watcher, stop: Stop) -> bool:
    """Load everything; False when a signal came first. Loads that a signal cuts short are left behind."""
    await run_until(stop.event.wait, watcher.start)
    gc.collect()
    gc.freeze()  # what lives as long as the process is not walked again by every collection
    return not stop.event.is_set()


async def _answer(state: ServerState, listener: socket.socket, stop: Stop) -> None:
    """Accept and answer until `stop`, then let what is in flight finish within the drain."""
    host, port = bind.listen(listener)
    app = cast("ASGIFramework", build_app(state))
    logs.emit(events.SERVE_STARTED, host=host, port=port, recipes=len(state.registry.entries()), version=state.version)
    await connections.serve(
        app,
        listener,
        _http_config(state.settings),
        until=partial(_take_leave, stop, state, listener.dup()),
        idle_timeout_s=state.settings.keep_alive_s,
        unread_timeout_s=state.settings.client_timeout_s,
    )


def _http_config(settings: Settings) -> Config:
    """Hypercorn's settings for its connections."""
    config = Config()
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.graceful_timeout = settings.drain_s
    config.keep_alive_max_requests = sys.maxsize
    config.include_server_header = False
    return config


async def _take_leave(stop: Stop, state: ServerState, listener: socket.socket) -> None:
    """Return when idle connections are to be closed: a moment after the signal. Closes `listener`.

    Until then nobody new comes in, and answers tell keep-alive clients that their connection ends. Closing at once
    would cut off requests that are on the wire already.
    """
    with listener:
        await stop.event.wait()
        bind.turn_away(listener)
        state.draining = True
        logs.emit(events.SERVE_DRAINING, signal=stop.reason, drain_seconds=state.settings.drain_s)
        await trio.sleep(min(LEAVE_TAKING_S, state.settings.drain_s))


async def _end_drain(stop: Stop, drain_s: float) -> None:
    """When the window is over and a client still holds its connection, end without it."""
    await stop.event.wait()
    await trio.sleep(drain_s + CLOSING_S)
    _say_shutdown(stop)
    signals.exit_now()


def _say_shutdown(stop: Stop) -> None:
    logs.emit(events.SERVE_SHUTDOWN, drain_seconds=round(trio.current_time() - stop.since, 3))


async def _warn_of(unsafe_modes: tuple[str, ...]) -> None:
    """Say again and again that the server must not stay like this."""
    while unsafe_modes:
        logs.emit(events.UNSAFE_MODE_ACTIVE, modes=unsafe_modes)
        await trio.sleep(UNSAFE_WARNING_INTERVAL_S)
