"""`svc demo`: data, keys, two recipes, training and a server, in one folder and without a network.

The commands that run are the real ones, each in a process of its own: `svc train` twice, then `svc serve`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from svc.cli.common.signals import Interrupted, interrupts
from svc.errors import ConfigError, SvcError

if TYPE_CHECKING:
    from svc.cli.shop.demo_files import Keys

NAME = "demo"
HELP = "Make a bookshop's data, train two recipes on it, serve them, and print requests to paste. Works offline."
EPILOG = """
[bold]Examples[/bold]
  svc demo                    everything, in ./svc-demo; Ctrl-C ends it
  svc demo --folder /tmp/shop --port 9000
  svc demo --files-only       data, recipes and keys, to go on by hand

[bold]Exit codes[/bold]
  0 ended by Ctrl-C   8 the port is in use   else those of train and serve
"""
HOST = "127.0.0.1"
DEFAULT_PORT = 8080
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


class DemoFailed(SvcError):
    """A command of the demo failed after saying why; its exit code becomes the demo's own."""

    code = "demo_failed"


def command(
    folder: Annotated[Path, typer.Option("--folder", help="Where the demo lives.")] = Path("svc-demo"),
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port of the server.", show_default="8080, or a free one"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep/--remove", help="Leave the folder in place at the end.")] = True,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Write data, recipes and keys, and stop there.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite data and recipes of an earlier demo that were changed.")
    ] = False,
) -> int:
    from svc.cli.shop.demo_files import prepare

    bound_port = _usable_port(port)
    typer.echo(f"svc demo in {folder}: writing data, recipes and keys")
    keys = prepare(folder, force=force)
    try:
        with interrupts():
            return 0 if files_only else _train_and_serve(folder, keys, bound_port)
    except Interrupted:
        typer.echo("svc demo ended")
        return 0
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _usable_port(wanted: int | None) -> int:
    """Return the port to serve on.

    A port that the user names must be free now, before a minute of training. Otherwise any free port will do.
    """
    for port in (DEFAULT_PORT, 0) if wanted is None else (wanted,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"--port: {HOST}:{wanted} is in use: name another port, or leave --port out")


def _train_and_serve(folder: Path, keys: Keys, port: int) -> int:
    from svc.cli.shop.demo_files import RECIPES
    from svc.cli.shop.demo_requests import print_requests

    environment = {**os.environ, **keys.environment, "SVC_CONSOLE": "1"}
    for recipe in RECIPES:
        typer.echo(f"svc train {folder / 'recipes' / recipe}.yaml")
        with _child(["train", str(folder / "recipes" / f"{recipe}.yaml"), "--quiet"], environment) as training:
            if training.wait():
                return training.returncode
    arguments = ["serve", "--recipes", str(folder / "recipes"), "--host", HOST, "--port", str(port)]
    with _child(arguments, environment) as server:
        url = f"http://{HOST}:{port}"
        _wait_until_ready(url, server)
        print_requests(url, folder, keys.api_key)
        return server.wait()


@contextmanager
def _child(arguments: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run one svc command, and end it on leaving.

    The command is terminated first, and killed if it does not end within STOP_TIMEOUT_S. It gets a process group of
    its own, so that Ctrl-C reaches it once, from this process.
    """
    program = [sys.executable] if getattr(sys, "frozen", False) else [sys.executable, "-m", "svc"]
    child = subprocess.Popen([*program, *arguments], env=environment, process_group=0)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    import time
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DemoFailed(f"svc serve ended with exit code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/v1/health/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise DemoFailed(f"svc serve was not ready within {READY_TIMEOUT_S:g} seconds")
