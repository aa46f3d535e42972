"""`svc demo`: write data, keys and three recipes, train and serve them, in one folder and without a network.

It runs the real commands, each in its own process: `svc train` for each recipe, then `svc serve`.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from svc.cli.common import Interrupted, interrupts
from svc.errors import ConfigError, SvcError, UsageError

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
KEYS = "keys.env"
RECIPES = ("books", "books-cold-start", "books-visits")
FILES = Path(__file__).with_name("demo_files")
"""Data and recipes that the demo copies. `docs/demo_shop.py` generates the data."""
REQUESTS = Path(__file__).with_name("demo_requests.json")
"""Example requests about the data in FILES."""


def print_requests(url: str, folder: Path, api_key: str) -> None:
    """Print example requests as curl commands, each with the answer of the server at `url`, then the console's address.

    `folder` is the folder of the demo.
    """
    for request in json.loads(REQUESTS.read_text(encoding="utf-8")):
        address, body = f"{url}/v1/recipes/{request['path']}", json.dumps(request["body"])
        typer.echo(
            f"\n# {request['title']}\n"
            f"curl -s {address} -H 'X-API-Key: {api_key}' -H 'Content-Type: application/json' -d {shlex.quote(body)}"
        )
        for item in _ask(address, body, api_key)["items"]:
            shown = f"{item['score']:9.4f}" if "score" in item else f"{item['reason'][0]:>9}"
            new = ", new" if "new" in item.get("reason", ()) else ""
            typer.echo(f"    {item['item_id']}  {shown}  {item['title']} ({item['categories']}){new}")
    typer.echo(f"\n# To look and try in the browser\n{url}/ with the API key {api_key}")
    typer.echo(f"\nServing at {url}. Ctrl-C ends it. Everything is in {folder}: recipes, data, artifacts, keys.")


def _ask(address: str, body: str, api_key: str) -> Any:
    headers = {"X-API-Key": api_key, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, body.encode(), headers), timeout=10) as answer:
        return json.load(answer)


def prepare(folder: Path, *, force: bool = False) -> dict[str, str]:
    """Write data and recipes into `folder`, and keys if it has no keys.env. Return the keys by their names.

    Raises UsageError if `folder` is a file, or has content but no keys.env. Raises it too for a changed file of the
    demo, unless `force` overwrites the file. Raises ConfigError if a folder cannot be made, or if keys.env lacks a key.
    """
    _check_free(folder)
    # Files have an ending and folders have none.
    shipped = {folder / path.relative_to(FILES): path.read_bytes() for path in FILES.rglob("*.*")}
    changed = [path for path, data in shipped.items() if path.exists() and path.read_bytes() != data]
    if changed and not force:
        raise UsageError(
            f"--folder: {', '.join(map(str, sorted(changed)))} was changed and stays as it is: "
            "name another folder, or overwrite it with --force"
        )
    for path, data in shipped.items():
        _make_folder(path.parent)
        path.write_bytes(data)
    _make_folder(folder / "artifacts")
    return _keys(folder / KEYS)


def _check_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--folder: {folder} is a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / KEYS).is_file():
        raise UsageError(f"--folder: {folder} is neither empty nor an svc demo: name an empty or a new folder")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--folder: {folder} cannot be made: {error.strerror}") from None


def _keys(path: Path) -> dict[str, str]:
    if not path.is_file():
        _write_keys(path)
    keys = dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    for name in ("SVC_SIGNING_KEYS", "DEMO_API_KEYS", "DEMO_API_KEY"):
        if name not in keys:
            raise ConfigError(f"{path} lacks {name}: name another folder, or delete {path.parent} to get a new demo")
    return keys


def _write_keys(path: Path) -> None:
    from svc.serving.api.authentication import hash_api_key, new_api_key

    api_key = new_api_key()
    text = (
        f"SVC_SIGNING_KEYS=demo:{secrets.token_hex(32)}\n"
        f"DEMO_API_KEYS=demo:{hash_api_key(api_key)}\n"
        f"DEMO_API_KEY={api_key}\n"
    )
    # With this mode from the start: a later chmod would leave the keys readable for a moment.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


class DemoFailed(SvcError):
    """`svc serve` ended, or did not answer in time, before it was ready. It has printed its own error."""

    code = "demo_failed"


def command(
    folder: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("svc-demo"),
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the server.", show_default="8080, or a free one")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep/--remove", help="Keep or remove the folder at the end.")] = True,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Write data, recipes and keys, and stop there.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite changed data and recipes of an earlier demo.")
    ] = False,
) -> int:
    """Make a bookshop's data, train three recipes on it, serve them, and print requests to paste. Works offline."""
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
            # The demo has ended well, whatever the folder says.
            shutil.rmtree(folder, ignore_errors=True)


def _usable_port(wanted: int | None) -> int:
    """Return the port to serve on: `wanted`, or if it is None, 8080 or any free port. 0 means any free port.

    Raises ConfigError if `wanted` is in use. Checked before the trainings, which take a minute.
    """
    for port in (DEFAULT_PORT, 0) if wanted is None else (wanted,):
        with socket.socket() as probe:
            # Without it the port of a demo that has just ended is refused for a minute.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"--port: {HOST}:{wanted} is in use: name another port, or leave --port out")


def _train_and_serve(folder: Path, keys: dict[str, str], port: int) -> int:
    own = {"SVC_SIGNING_KEYS": keys["SVC_SIGNING_KEYS"], "SVC_API_KEYS": keys["DEMO_API_KEYS"], "SVC_CONSOLE": "1"}
    environment = {**os.environ, **own}
    for recipe in RECIPES:
        path = folder / "recipes" / f"{recipe}.yaml"
        typer.echo(f"svc train {path}: searching for the best model, for up to half a minute")
        with _child(["train", str(path)], {"SVC_LOG_LEVEL": "warning", **environment}) as training:  # with its bar
            if training.wait():
                return training.returncode
    arguments = ["serve", "--recipes", str(folder / "recipes"), "--host", HOST, "--port", str(port)]
    typer.echo(f"svc serve --recipes {folder / 'recipes'}: loading the models")
    with _child(arguments, environment) as server:
        url = f"http://{HOST}:{port}"
        _wait_until_ready(url, server)
        print_requests(url, folder, keys["DEMO_API_KEY"])
        return server.wait()


@contextmanager
def _child(arguments: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run one svc command during the block.

    At the end of the block the command is terminated, and killed if it still runs after STOP_TIMEOUT_S. The command has
    its own process group, so that Ctrl-C in the terminal reaches only the demo, which then ends the command.
    """
    # In the executable of one file, `sys.executable` is svc itself.
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
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DemoFailed(f"svc serve ended with exit code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/v1/health/ready", timeout=1):
                return
        # Also an answer of 503: urllib raises it as an HTTPError, which is an OSError.
        except OSError:
            time.sleep(0.1)
    raise DemoFailed(f"svc serve was not ready within {READY_TIMEOUT_S:g} seconds")
