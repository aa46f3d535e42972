"""Stores that fail under a running server: the old models answer, and each error is reported and then clears."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.e2e.server import Server, put, until, write_recipe
from tests.privileges import obeying_command
from tests.serving.artifacts import header, popularity_model, write_artifact
from tests.serving.live import Live, live

pytestmark = pytest.mark.integration


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    return folder


def load_errors(server: Server | Live) -> dict[str, str]:
    """Return `last_load_error` of each recipe that has one."""
    found = server.details()[1]["recipes"]
    return {name: one["last_load_error"] for name, one in found.items() if "last_load_error" in one}


def is_faulty(server: Server | Live, wanted: Mapping[str, str]) -> bool:
    """Return True if exactly the recipes of `wanted` have errors, each with its words."""
    errors = load_errors(server)
    return errors.keys() == wanted.keys() and all(words in errors[name] for name, words in wanted.items())


def first_items(server: Server | Live, names: list[str]) -> set[str]:
    answers = {name: server.recommend(name) for name in names}
    assert {name for name, answer in answers.items() if answer.status_code != 200} == set()
    return {answer.json()["items"][0]["item_id"] for answer in answers.values()}


def by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def by_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def by_looping_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def by_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def by_missing_target(path: Path) -> None:
    put(path, f"{path.stem}.01234567.svc\n")


def by_hostile_pointer(path: Path) -> None:
    put(path, "../../../../etc/passwd\n")


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "folder": (by_folder, "Is a directory"),
    "dangling": (by_dangling_link, "artifact not found"),
    "loop": (by_looping_link, "Too many levels of symbolic links"),
    "pipe": (by_pipe, "is not a file"),
    "device": (by_device, "is not a file"),
    "sparse": (lambda path: os.truncate(path, 64 << 30), "payload exceeds max bytes"),
    "gone": (Path.unlink, "artifact not found"),
    "empty": (lambda path: put(path, ""), "magic bytes mismatch"),
    "cut": (lambda path: os.truncate(path, 100), "magic bytes mismatch"),
    "pointer": (by_missing_target, "points to an artifact that cannot be read"),
    "climbing-pointer": (by_hostile_pointer, "magic bytes mismatch"),
    "denied": (lambda path: path.chmod(0), "Permission denied"),
    "closed": (lambda path: path.parent.chmod(0), "Permission denied"),
}


def test_models_survive_faults_of_the_file_system(home: Path, tmp_path: Path) -> None:
    """Models go on answering if their files become folders, links, pipes or unreadable.

    Each error is reported and clears when a good artifact is back. The server needs no write permission for recipes,
    artifacts and their folders.
    """
    prefix = obeying_command()
    if prefix is None:
        pytest.skip("root ignores permissions here, and setpriv is not installed")
    paths = {name: tmp_path / name / "m.svc" for name in FAULTS}
    for name, path in paths.items():
        write_artifact(path, popularity_model(0))
        write_recipe(home, name, path).chmod(0o444)
    for folder in (home, paths["cut"].parent):
        folder.chmod(0o555)
    with Server(home, prefix=prefix) as server:
        assert first_items(server, list(FAULTS)) == {"i0"}
        for name, (damage, _) in FAULTS.items():
            damage(paths[name])
        wanted = {name: words for name, (_, words) in FAULTS.items()}
        until(lambda: is_faulty(server, wanted), lambda: str(load_errors(server)))  # a busy machine may be late
        assert first_items(server, list(FAULTS)) == {"i0"}
        assert server.health()[0] == 200
        paths["denied"].chmod(0o644)
        for name in ("closed", "cut"):
            paths[name].parent.chmod(0o755)
        until(lambda: not {"denied", "closed"} & load_errors(server).keys(), lambda: str(load_errors(server)))
        for path in paths.values():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
            write_artifact(path, popularity_model(1))
        until(lambda: load_errors(server) == {}, lambda: str(load_errors(server)))
        until(lambda: first_items(server, list(FAULTS)) == {"i1"})
        assert server.stop() == 0


def test_a_half_copied_artifact_is_never_served(home: Path, tmp_path: Path) -> None:
    """An artifact that is overwritten piece by piece is refused while it is incomplete and served when it is whole."""
    path, fresh, pieces = tmp_path / "m.svc", tmp_path / "fresh.svc", 8
    write_recipe(home, "m", path)
    version = write_artifact(path, popularity_model(0))
    with live(home) as server:
        for number in (1, 2, 3):
            sha256 = write_artifact(fresh, popularity_model(number), head=header(number=number))
            content = fresh.read_bytes()
            with path.open("r+b", buffering=0) as file:
                for piece in range(pieces):
                    assert server.recommend("m").json()["model_version"] == f"sha256:{version}"
                    file.write(content[piece * len(content) // pieces : (piece + 1) * len(content) // pieces])
                    server.poll()
            version = sha256
            assert server.recommend("m").json()["model_version"] == f"sha256:{version}"
        assert server.said("artifact_load_failed")
        assert load_errors(server) == {}


class FaultyStore(BaseHTTPRequestHandler):
    """A web store that serves `/<fault>/m.svc` correctly, and with the named fault while `broken` is set."""

    protocol_version = "HTTP/1.1"
    good = b""
    foreign = b""
    broken = threading.Event()
    over = threading.Event()

    def do_GET(self) -> None:
        fault = self.path.split("/")[1] if self.broken.is_set() else ""
        if not self.path.endswith(".svc"):
            self._answer(404, b"")
        elif fault.startswith("hang"):
            self.over.wait(3600)
            self.close_connection = True
        elif fault.isdigit():
            self._answer(int(fault), b"<Error>token=hunter2</Error>")
        else:
            self._answer(200, self._body(fault), short=fault == "cut")

    do_HEAD = do_GET

    def _body(self, fault: str) -> bytes:
        return {"another": self.foreign, "rubbish": b"<html>It works!</html>", "cut": self.foreign}.get(
            fault, self.good
        )

    def _answer(self, status: int, body: bytes, *, short: bool = False) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if short else body)
        self.close_connection = self.close_connection or short

    def log_message(self, *_: object) -> None:
        """Log nothing, to keep the output of the tests short."""


WEB_FAULTS = {
    "503": "status 503",
    "429": "status 429",
    "403": "status 403",
    "404": "artifact not found",
    "hang": "did not answer",
    "cut": "",
    "rubbish": "magic bytes mismatch",
}


@contextmanager
def faulty_store(good: bytes, foreign: bytes) -> Iterator[str]:
    FaultyStore.good, FaultyStore.foreign = good, foreign
    FaultyStore.broken.clear()
    FaultyStore.over.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), FaultyStore) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        FaultyStore.over.set()
        server.shutdown()


def test_models_survive_faults_of_a_web_store(home: Path, tmp_path: Path) -> None:
    """Models go on answering if a web store throttles, refuses, hangs, or sends cut or foreign bodies.

    Each error is reported without secrets of the store's answer, and clears. A valid artifact of another recipe is
    served, because its signature is valid, and the log names the recipe that it was trained for.
    """
    write_artifact(tmp_path / "good.svc", popularity_model(0))
    write_artifact(tmp_path / "foreign.svc", popularity_model(1), head=header(recipe_name="books"))
    good, foreign = ((tmp_path / f"{name}.svc").read_bytes() for name in ("good", "foreign"))
    errors = {f"w{fault}": words for fault, words in WEB_FAULTS.items()}
    with faulty_store(good, foreign) as web:
        for fault in (*WEB_FAULTS, "another"):
            write_recipe(home, f"w{fault}", f"{web}/{fault}/m.svc")
        variables = {"SVC_HTTP_ALLOW_PRIVATE": "1", "SVC_HTTP_TIMEOUT_SECONDS": "2", "SVC_WATCH_INTERVAL": "1"}
        with live(home, variables) as server:
            server.until(lambda: server.health()[0] == 200)  # a busy machine may be late
            assert first_items(server, [*errors, "wanother"]) == {"i0"}
            FaultyStore.broken.set()
            server.until(lambda: is_faulty(server, errors))
            assert "hunter2" not in str(server.records) + str(load_errors(server))
            mixed = server.wait_for("artifact_of_another_recipe", name="wanother")
            assert mixed["artifact_recipe"] == "books"
            assert first_items(server, list(errors)) == {"i0"}
            assert first_items(server, ["wanother"]) == {"i1"}
            FaultyStore.broken.clear()
            FaultyStore.over.set()
            server.until(lambda: load_errors(server) == {})
            server.until(lambda: first_items(server, [*errors, "wanother"]) == {"i0"})
