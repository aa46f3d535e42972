"""Hostile recipe files beside a good one: each is refused with its own event, and the good recipe is served."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from svc.recipe.yaml_reader import MAX_BYTES
from tests.e2e.server import Server, put, until, write_recipe
from tests.serving.artifacts import popularity_model, write_artifact
from tests.serving.live import live

MIB = 1 << 20
SECURITY, MISTAKE = "recipe_security_violation_skipped", "recipe_load_error_skipped"
GOOD: dict[str, Any] = {
    "name": "x",
    "source": {"type": "csv", "path": "none.csv"},
    "schema": {"user_column": "u", "item_column": "i"},
    "output": {"path": "x.svc"},
}


def with_output(path: str) -> str:
    return json.dumps({**GOOD, "output": {"path": path}})


def changed(**blocks: Any) -> str:
    return json.dumps({**GOOD, **blocks})


def text_of(tail: str) -> str:
    """Return the good recipe as YAML, followed by `tail`."""
    return "\n".join([*(f"{key}: {json.dumps(value)}" for key, value in GOOD.items()), tail, ""])


LEVELS = "abcdefghi"
ALIASES = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in pairwise(LEVELS)
)
HOSTILE: dict[str, tuple[str, str, str]] = {
    # name of the attack: (text of the file, event, part of the error)
    "climbs-out": (with_output("../../../etc/x.svc"), SECURITY, "SVC_ARTIFACT_ROOT"),
    "absolute": (with_output("/etc/cron.d/x.svc"), SECURITY, "SVC_ARTIFACT_ROOT"),
    "file-uri": (with_output("file:///etc/x.svc"), SECURITY, "SVC_ARTIFACT_ROOT"),
    "encoded-dots": (with_output("https://h.example/%2e%2e/x.svc"), SECURITY, "not allowed in the path"),
    "ftp": (with_output("ftp://h.example/x.svc"), SECURITY, "scheme ftp:// is not allowed"),
    "memory": (with_output("memory://x.svc"), SECURITY, "scheme memory:// is not allowed"),
    "chained": (with_output("simplecache::s3://b/x.svc"), SECURITY, "chained"),
    "credentials": (with_output("https://me:hunter2@h.example/x.svc"), SECURITY, "user-info"),
    "encoded-credentials": (with_output("https://me:hunter2%40h.example/x.svc"), SECURITY, "host and port"),
    "secret-variable": (with_output("${SVC_RECIPE_API_TOKEN}.svc"), SECURITY, "SVC_RECIPE_API_TOKEN"),
    "aliases": (ALIASES, SECURITY, "counting what aliases repeat"),
    "long-aliases": (f"a: &a {'x' * 200_000}\nb: [{','.join(['*a'] * 500)}]\n", SECURITY, "counting what aliases"),
    "deep": ("[" * 5000, SECURITY, "nested deeper"),
    "wide": ("a: [" + "1," * 100_000 + "]", SECURITY, "more than 20000 values"),
    "ten-megabytes": (text_of("x: " + "y" * (10 * MIB)), SECURITY, f"larger than {MAX_BYTES} bytes"),
    "long-name": (changed(name="y" * 200_000), MISTAKE, "letters, digits"),
    "builds-objects": (text_of("x: !!python/object/apply:os.system ['touch {mark}']"), SECURITY, "tag"),
    "names-objects": (text_of("x: !!python/name:os.system"), SECURITY, "tag"),
    "binary": (text_of("x: !!binary aGVsbG8="), SECURITY, "tag"),
    "twice": (text_of("name: y"), MISTAKE, "the key 'name' appears twice"),
    "twice-within": (text_of("training: {cutoff: 1, cutoff: 2}"), MISTAKE, "the key 'cutoff' appears twice"),
    "look-alike-name": (changed(name="аpple"), MISTAKE, "(with CYRILLIC SMALL LETTER A)"),
    "look-alike-key": (text_of("trainіng: {}"), MISTAKE, "BYELORUSSIAN-UKRAINIAN I"),
    "right-to-left": (changed(name="\u202egpj.a"), MISTAKE, "RIGHT-TO-LEFT OVERRIDE"),
    "number-bomb": (text_of("training: {n_trials: 0x" + "f" * 100_000 + "}"), MISTAKE, "too long"),
    "sexagesimal": (text_of("training: {seed: " + ":".join(["59"] * 60_000) + "}"), MISTAKE, "too long"),
    "two-documents": (text_of("---\nname: y"), MISTAKE, "second document"),
    "itself": ("a: &a [*a]\n", MISTAKE, "names no anchor"),
    "nul": ("name: \x00", MISTAKE, "not valid YAML"),
    "many-unknown": (text_of("\n".join(f"k{n}: 1" for n in range(5000))), MISTAKE, "problems"),
    "path-as-name": (changed(name="../../v1/health"), MISTAKE, "letters, digits"),
    "endless": ('name: "' + "y" * 200_000, MISTAKE, "not valid YAML"),
}


def plant(home: Path, what: str, mark: Path) -> None:
    put(home / f"{what}.yaml", HOSTILE[what][0].replace("{mark}", str(mark)))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with one good recipe, which is also the only folder allowed for artifacts."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    write_recipe(folder, "good", folder / "good.svc")
    write_artifact(folder / "good.svc", popularity_model(0))
    yield folder


def environment(home: Path) -> dict[str, str]:
    return {"SVC_ARTIFACT_ROOT": str(home), "SVC_RECIPE_API_TOKEN": "hunter2"}


def check(server: Server, home: Path) -> None:
    """Check that each hostile file was skipped with its event, ran nothing and leaked no secret.

    The good recipe must be answered.
    """
    for what, (_, event, words) in HOSTILE.items():
        # Checking all files takes ten seconds of processor time, which can last a minute beside other tests.
        record = server.wait_for(event, name=what, deadline_s=180.0)
        assert words in record["error"], record
        assert len(record["error"]) < 4000
    assert server.recommend("good").status_code == 200
    status, document = server.details()
    assert (status, document["status"]) == (200, "ok")
    assert {what for what in HOSTILE if document["recipes"][what]["skipped"]} == set(HOSTILE)
    assert not (home.parent / "mark").exists()
    assert "hunter2" not in server.log() + json.dumps(document)


def test_hostile_recipes_disturb_neither_start_nor_run(home: Path) -> None:
    """Hostile files at the start and on polls fail no request and leave the memory of the server bounded.

    A good recipe that is added afterwards is served.
    """
    names, mark = list(HOSTILE), home.parent / "mark"
    for what in names[::2]:
        plant(home, what, mark)
    with Server(home, env=environment(home), fresh=True) as server:
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1, "skipped": len(names[::2])})
        before = server.resident_bytes()
        for what in names[1::2]:
            plant(home, what, mark)
            assert server.recommend("good").status_code == 200
        check(server, home)
        grown = server.resident_bytes() - before
        for what in HOSTILE:
            (home / f"{what}.yaml").unlink()
        write_recipe(home, "late", home / "good.svc")
        server.wait_for("artifact_loaded", name="late")
        until(lambda: server.health()[1] == {"status": "ok", "total": 2, "loaded": 2})
        print(f"{len(HOSTILE)} files; resident memory +{grown / MIB:.1f} MiB")  # noqa: T201
        assert grown < 64 * MIB
        assert server.stop() == 0


def test_links_pipes_and_devices_among_recipes_are_refused(home: Path, tmp_path: Path) -> None:
    """Links to outside, to nothing or to themselves, pipes, devices and names that are not UTF-8 are skipped."""
    outside = write_recipe(tmp_path, "outside", "o.svc")
    (home / "out.yaml").symlink_to(outside)
    (home / "passwd.yaml").symlink_to("/etc/passwd")
    (home / "zero.yaml").symlink_to("/dev/zero")
    (home / "nowhere.yaml").symlink_to(home / "none.yaml")
    (home / "circle.yaml").symlink_to(home / "circle.yaml")
    os.mkfifo(home / "pipe.yaml")
    put(home / os.fsdecode(b"\xff\xfe.yaml"), "name: [")
    with live(home, environment(home)) as server:
        refused = {event: {one["name"] for one in server.said(event)} for event in (SECURITY, MISTAKE)}
        assert refused[SECURITY] == {"out", "passwd", "zero"}
        assert refused[MISTAKE] == {"nowhere", "circle", "pipe", "\\xff\\xfe"}
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1, "skipped": 7})
        assert server.details()[0] == 200
        assert server.recommend("good").status_code == 200
