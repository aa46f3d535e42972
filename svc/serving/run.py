"""The start and stop of `svc serve`: check the settings, create the parts of the server, run them, and end them."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from svc import __version__, events, logs
from svc.artifact.keys import SigningKeys, development_keys, fingerprints, load_signing_keys
from svc.artifact.replay import ReplayGuard
from svc.artifact.store import open_store
from svc.errors import ConfigError
from svc.metrics import Metrics
from svc.processes import require_memory_files
from svc.recipe.load import load_recipe
from svc.serving import process
from svc.serving.api.application import Application
from svc.serving.api.authentication import Authenticator, load_api_keys
from svc.serving.api.key_policies import KeyPolicies, PolicyFile
from svc.serving.api.monitoring import serve_monitoring
from svc.serving.api.request import ServerState
from svc.serving.models.console import read_versions
from svc.serving.models.lanes import Lane
from svc.serving.models.list_watch import ListWatch
from svc.serving.models.loader import Loaded, Loader
from svc.serving.models.recipes import RecipeFolder
from svc.serving.models.registry import Registry
from svc.serving.models.threads import ScoringThreads
from svc.serving.models.transitions import Publisher
from svc.serving.models.watcher import Watcher
from svc.serving.process import Stop
from svc.serving.transport import server
from svc.serving.transport.certificate import Certificate, Tls, read_certificate
from svc.serving.transport.connection import run_until
from svc.serving.workers.fleet import Fleet, answer
from svc.serving.workers.package import pack_loaded
from svc.settings import Settings

UNSAFE_WARNING_INTERVAL_S = 300.0
CLOSING_S = 1.0
"""Time after the drain for closing connections, lanes and workers, before the process is ended by force."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `svc serve`.

    The command line accepts `dev_allow_unsigned` and `insecure_no_auth` in a development environment only.
    """

    recipes_dir: Path
    host: str
    port: int
    insecure_no_auth: bool = False
    dev_allow_unsigned: bool = False
    workers: int = 1

    @property
    def unsafe_modes(self) -> tuple[str, ...]:
        """Names of the options that switch off a protection."""
        modes = {"dev_allow_unsigned": self.dev_allow_unsigned, "insecure_no_auth": self.insecure_no_auth}
        return tuple(name for name, on in modes.items() if on)


def serve(
    options: ServeOptions, settings: Settings, variables: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    `variables` may be used in recipes. `environ` is the environment of this process by default, and worker processes
    inherit a part of it. Raises `ConfigError` if the server cannot start, before it accepts connections.
    """
    if settings.max_payload_bytes > settings.max_artifact_bytes:
        raise ConfigError("SVC_MAX_PAYLOAD_BYTES is larger than SVC_MAX_ARTIFACT_BYTES: lower it or raise the other")
    keys = _signing_keys(options, settings)
    api_keys = load_api_keys(settings)
    certificate = read_certificate(settings)
    server.check_exposure(options.host, has_api_keys=bool(api_keys), insecure_no_auth=options.insecure_no_auth)
    if options.workers > 1:
        require_memory_files()
    # Before models are loaded, so that a port in use is known at once.
    listener = server.bind(options.host, options.port, unread_timeout_s=settings.client_timeout_s)
    fleet = None
    if options.workers > 1:
        fleet = Fleet(options.workers, os.environ if environ is None else environ, listener)
    counters = Metrics.create(fleet) if settings.metrics_enabled else Metrics.disabled()
    # With workers, this process answers no request, and each worker makes the spans of its own.
    spans = process.spans() if settings.otel_enabled and fleet is None else None
    monitoring = _monitoring_socket(options, settings)
    process.tune()
    logs.emit(
        events.SECURITY_POSTURE,
        signing_keys=fingerprints(keys.entries),
        **({"verify_keys": fingerprints(keys.public)} if keys.public else {}),
        api_keys_configured=len(api_keys),
        env=settings.env,
        unsafe_modes=options.unsafe_modes,
        tls=certificate is not None,
        client_certificates=certificate is not None and certificate.client_ca is not None,
    )
    auth = Authenticator(api_keys, log_each_bypass=settings.log_level == "debug")
    state = ServerState(Registry() if fleet is None else fleet.registry, settings, counters, auth, spans=spans)
    if certificate is not None:
        state.tls = Tls(certificate)
    if fleet is not None:
        fleet.tell("keys", api_keys)
        if certificate is not None:
            fleet.tell("certificate", certificate)
    _read_policies(state, fleet)
    pack = None if fleet is None else pack_loaded
    loader = Loader(settings, keys, variables, ReplayGuard.of(settings), pack)
    try:
        with listener:
            return trio.run(partial(_live, options, state, loader, listener, monitoring=monitoring, fleet=fleet))
    except BaseExceptionGroup as group:
        raise process.unwrap_single(group) from None


def _signing_keys(options: ServeOptions, settings: Settings) -> SigningKeys:
    """Return the keys that verify artifacts. Raises `ConfigError` if there are none or if one is invalid.

    With `dev_allow_unsigned`, the keys include the development key.
    """
    keys = load_signing_keys(settings)
    if options.dev_allow_unsigned:
        return keys.with_development() if keys else development_keys()
    if not keys:
        raise ConfigError(
            "SVC_SIGNING_KEYS is empty, so no artifact can be verified: give the keys that `svc train` signs with, "
            "or their public halves in SVC_VERIFY_KEYS"
        )
    return keys


def _monitoring_socket(options: ServeOptions, settings: Settings) -> socket.socket | None:
    """Return the bound socket of SVC_METRICS_PORT, or None if it is unset.

    Raises `ConfigError` if metrics are not enabled, or if the port cannot be bound.
    """
    if settings.metrics_port is None:
        return None
    if not settings.metrics_enabled:
        raise ConfigError("SVC_METRICS_PORT needs SVC_METRICS_ENABLED=1: set it, or leave the port unset")
    return server.bind(options.host, settings.metrics_port, unread_timeout_s=settings.client_timeout_s)


def _read_policies(state: ServerState, fleet: Fleet | None) -> None:
    """Read the policies of API keys (SVC_API_KEY_POLICIES), and pass them to the state and to the workers.

    Does nothing if the variable is unset. Raises `ConfigError` if the file is invalid or if clients need no API key.
    """
    settings = state.settings
    if settings.api_key_policies is None:
        return
    if not state.auth.required:
        raise ConfigError("SVC_API_KEY_POLICIES is set, but SVC_API_KEYS is empty: there is no key to limit")
    state.policies = KeyPolicies(state.metrics)
    uses = (state.policies.replace,) if fleet is None else (state.policies.replace, fleet.tell_policies)
    state.policy_file = PolicyFile(
        Path(settings.api_key_policies), uses, kids=state.auth.kids, interval_s=settings.watch_interval_s
    )
    state.policy_file.read()


async def _live(
    options: ServeOptions,
    state: ServerState,
    loader: Loader,
    listener: socket.socket,
    *,
    monitoring: socket.socket | None,
    fleet: Fleet | None,
) -> int:
    """Start and stop all parts of the server, and return the exit code.

    The nurseries are nested in the order of the stop. Reloads end at the signal, lanes after the last answer, and the
    monitoring port and the signal handlers last.
    """
    stop = Stop()
    async with trio.open_nursery() as whole:
        await whole.start(process.listen, stop, process.exit_now)
        if monitoring is not None:
            host, port = server.listen(monitoring)
            logs.emit(events.MONITORING_STARTED, host=host, port=port)
            whole.start_soon(serve_monitoring, state, monitoring)
        async with trio.open_nursery() as lanes:
            if fleet is not None:
                await lanes.start(fleet.run)
            watcher = _watcher(options, state, loader, lanes, fleet)
            state.versions = lambda name: read_versions(
                watcher.recipe(name), loader.keys, state.settings, state.registry.get(name)
            )
            if fleet is not None:
                fleet.answer = partial(answer, state)
            renew = partial(_renew_keys, options, state, loader, watcher, fleet)
            lanes.start_soon(run_until, stop.event.wait, partial(process.on_hangup, renew))
            lanes.start_soon(state.run)
            if await _load_all(watcher, stop):
                # Only now, because a signal during the first loads ends the server without a drain.
                whole.start_soon(_end_drain, stop, state.settings.drain_s)
                async with trio.open_nursery() as background:
                    background.start_soon(run_until, stop.event.wait, watcher.run)
                    background.start_soon(run_until, stop.event.wait, partial(_warn_of, options.unsafe_modes))
                    if state.policy_file is not None:
                        background.start_soon(run_until, stop.event.wait, state.policy_file.run)
                    if fleet is None:
                        await _answer(state, listener, stop)
                    else:
                        await _let_answer(state, listener, stop, fleet)
            lanes.cancel_scope.cancel()
        if state.spans is not None:
            await process.close_spans(state.spans)
        _say_shutdown(stop)
        whole.cancel_scope.cancel()
    return 0


def _read_keys(options: ServeOptions, settings: Settings) -> tuple[SigningKeys, dict[str, bytes], Certificate | None]:
    """Return the signing keys, the API keys and the certificate, read again from their files.

    Raises ConfigError if a file is invalid. A file without keys is, so a reload never ends authentication.
    """
    return _signing_keys(options, settings), load_api_keys(settings), read_certificate(settings)


async def _renew_keys(
    options: ServeOptions, state: ServerState, loader: Loader, watcher: Watcher, fleet: Fleet | None
) -> None:
    """Replace signing keys, API keys and the certificate by the content of their files.

    If a file is invalid, the error is logged, and all keys and the certificate stay as they are.
    """
    try:
        # All are read before any is replaced, so an invalid file leaves no half of the new keys.
        keys, api_keys, certificate = await trio.to_thread.run_sync(_read_keys, options, state.settings)
        if state.tls is not None and certificate is not None:
            state.tls.replace(certificate)
    except (ConfigError, RuntimeError, OSError) as error:
        # RuntimeError if the system cannot start another thread, OSError if descriptors are lacking.
        logs.emit(events.KEYS_RELOAD_FAILED, error=str(error))
        return
    loader.keys = keys
    state.auth.replace(api_keys)
    if fleet is not None:
        fleet.tell("keys", api_keys)
        if certificate is not None:
            fleet.tell("certificate", certificate)
    # After the new keys, which may verify the artifacts that the old keys refused.
    watcher.try_refused_again()
    logs.emit(events.KEYS_RELOADED, signing_keys=fingerprints(keys.entries), api_keys_configured=len(api_keys))


def _watcher(
    options: ServeOptions, state: ServerState, loader: Loader, lanes: trio.Nursery, fleet: Fleet | None
) -> Watcher:
    settings = state.settings
    threads = ScoringThreads.of(settings)
    trio.lowlevel.add_instrument(threads)

    async def start_lane(loaded: Loaded) -> Lane:
        lane = Lane(loaded.model, threads)
        await lanes.start(lane.run)
        return lane

    if fleet is None:
        publisher = Publisher(state.registry, start_lane, state.metrics)
    else:
        publisher = Publisher(state.registry, fleet.prepare, state.metrics, fleet.wait_until_executed)
    parse = partial(load_recipe, variables=loader.variables, settings=settings, for_serving=True)
    return Watcher(
        folder=RecipeFolder(options.recipes_dir, parse, with_yml=settings.yml_recipes),
        open_store=lambda loaded: open_store(loaded.output_uri, settings, label=loaded.recipe.name),
        loader=loader,
        publisher=publisher,
        settings=settings,
        metrics=state.metrics,
        lists=ListWatch(publisher, loader, state.metrics),
    )


async def _load_all(watcher: Watcher, stop: Stop) -> bool:
    """Load all models, and return True, or return False if a signal came first. The signal abandons the loads."""
    await run_until(stop.event.wait, watcher.start)
    gc.collect()
    gc.freeze()  # later collections skip the objects that exist now, most of which live as long as the process
    return not stop.event.is_set()


async def _answer(state: ServerState, listener: socket.socket, stop: Stop) -> None:
    """Accept and answer requests in this process until `stop`, then drain the connections."""
    _say_started(state, *server.listen(listener))
    await server.serve(
        Application(state),
        listener,
        process.limits(state.settings),
        until=partial(_announce_drain, stop, state),
        tls=state.tls,
    )


async def _let_answer(state: ServerState, listener: socket.socket, stop: Stop, fleet: Fleet) -> None:
    """Let the workers accept and answer requests until `stop`, then let them drain their connections."""
    await run_until(stop.event.wait, fleet.all_ready)
    with listener:
        if not stop.event.is_set():
            address = server.listen(listener)
            fleet.accept()
            _say_started(state, *address, workers=fleet.size)
            await _announce_drain(stop, state, fleet)
        fleet.end()
    await fleet.ended.wait()


def _say_started(state: ServerState, host: str, port: int, *, workers: int = 1) -> None:
    recipes = len(state.registry.recipes())
    logs.emit(events.SERVE_STARTED, host=host, port=port, recipes=recipes, version=__version__, workers=workers)
    process.notify_ready(os.environ)


async def _announce_drain(stop: Stop, state: ServerState, fleet: Fleet | None = None) -> None:
    """Wait for the signal, then begin the drain. From then on each answer announces the end of its connection."""
    await stop.event.wait()
    state.draining = True
    if fleet is not None:
        fleet.tell("drain")
    logs.emit(events.SERVE_DRAINING, signal=stop.reason, drain_seconds=state.settings.drain_s)


async def _end_drain(stop: Stop, drain_s: float) -> None:
    """Wait for the signal and the drain, then end the process by force.

    A client that still holds its connection, or a thread that hangs, must not keep the process alive. In a regular stop
    the process ends before this time, and this task is cancelled.
    """
    await stop.event.wait()
    await trio.sleep(drain_s + CLOSING_S)
    _say_shutdown(stop)
    process.exit_now()


def _say_shutdown(stop: Stop) -> None:
    logs.emit(events.SERVE_SHUTDOWN, drain_seconds=round(trio.current_time() - stop.since, 3))


async def _warn_of(unsafe_modes: tuple[str, ...]) -> None:
    """Log a warning every UNSAFE_WARNING_INTERVAL_S while the server runs with an unsafe option."""
    while unsafe_modes:
        logs.emit(events.UNSAFE_MODE_ACTIVE, modes=unsafe_modes)
        await trio.sleep(UNSAFE_WARNING_INTERVAL_S)
