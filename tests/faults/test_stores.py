"""Each request of a command to an object store fails once. Objects are old or new, and the next run succeeds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc import objects
from tests.faults.books import RECIPE, run, set_environment, write_interactions
from tests.faults.failing_calls import STRIDE
from tests.faults.failing_store import FailingStore
from tests.faults.test_commands import AGAIN, COMMANDS

NAMES = ("train", "rollback", "promote", "recommend", "merge") if STRIDE == 1 else ("train", "rollback")
CALLS = ("info", "list", "get", "put", "remove")


def in_store(command: str) -> str:
    return command.replace("out/books.svc", "s3://shop/books.svc").replace("--output ", "--output s3://shop/")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """Return a folder with the recipes, and the objects of two versions and of both halves of an export."""
    folder = tmp_path_factory.mktemp("stored")
    write_interactions(folder)
    recipe = RECIPE.replace("out/books.svc", "s3://shop/books.svc").replace("keep: 4", "keep: 2")
    (folder / "books.yaml").write_text(recipe, encoding="utf-8")
    (folder / "gated.yaml").write_text(f"{recipe}promotion: {{mode: enforce}}\n", encoding="utf-8")
    store = FailingStore({})
    with pytest.MonkeyPatch.context() as patch:
        set_environment(patch, folder)
        patch.setattr(objects, "client_of", store.wrapped)
        for command in (
            "train books.yaml --quiet --run-id first",
            "train books.yaml --quiet --run-id second",
            in_store(COMMANDS["shard"].replace("1/2", "0/2")),
            in_store(COMMANDS["shard"]),
        ):
            assert run(command, folder) == 0
    return folder, store.contents


def runs(
    command: str, fault: tuple[str, bool], trained: tuple[Path, dict[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[int, str]]:
    """Yield exit code and last line of each run with a failed call. Check and use the store after each run."""
    folder, contents = trained
    kind, lost = fault
    older = json.loads(contents["/shop/books.svc.log.jsonl"].splitlines()[0])["sha8"]
    for nth in itertools.count(1, STRIDE):
        store = FailingStore(contents, kind, nth, lost=lost)
        with pytest.MonkeyPatch.context() as patch:
            set_environment(patch, folder)
            patch.setattr(objects, "client_of", store.wrapped)
            capsys.readouterr()
            code = run(in_store(COMMANDS[command]), folder, older)
            told = capsys.readouterr()
            if not store.failed:
                assert code == 0, told.err
                print(f"{command}, {kind}: {store.made} calls")  # noqa: T201 - `-rP` shows how many
                return
            yield code, told.err.splitlines()[-1] if told.err else ""
            capsys.readouterr()
            run("history books.yaml --verify", folder)
            assert "has no line" not in capsys.readouterr().out
            assert run(in_store(AGAIN.get(command, COMMANDS[command])), folder, older) == 0, capsys.readouterr().err
            capsys.readouterr()
            assert run("history books.yaml --json", folder) == 0
            versions = json.loads(capsys.readouterr().out)["versions"]
            other = next(version["sha8"] for version in versions if not version["live"])
            assert run("promote books.yaml OLDER", folder, other) == 0, capsys.readouterr().err
            assert run("history books.yaml --verify", folder) == 0, capsys.readouterr().out


@pytest.mark.system
@pytest.mark.parametrize(
    "fault", [*itertools.product(CALLS, (False, True))], ids=lambda fault: f"{fault[0]}-{fault[1]}"
)
@pytest.mark.parametrize("command", NAMES)
def test_a_store_survives_a_failure_of_any_request(
    command: str,
    fault: tuple[str, bool],
    trained: tuple[Path, dict[str, bytes]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A request fails before its effect, or its answer is lost after the effect."""
    for code, last in runs(command, fault, trained, capsys):
        if code:
            assert json.loads(last)["code"] != "internal_error", last
            assert "traceback" not in json.loads(last)
