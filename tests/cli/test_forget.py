"""`svc forget`: no byte of the user is left beside the pointer, and no rollback brings the user back."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import svc
from svc import atomic_write
from svc.artifact import store_local
from svc.artifact.keys import parse_signing_keys, public_entry
from svc.artifact.store import Store
from svc.cli import main
from svc.experiments.served_log import read_served
from svc.recipe.serving_schema import ServedLog
from svc.serving.served_log import Line, LogFile
from tests.cli.conftest import KEY, history, last_error, train
from tests.object_store import ObjectsInMemory

PERSON, OTHER = "person-7-x", "person-8-x"


@pytest.fixture
def shop(recipe: Path) -> Path:
    """Return the recipe with three versions, the second of them live, over users with telling ids."""
    table = recipe.parent / "books.csv"
    head, body = table.read_text().split("\n", 1)
    rows = ("\n" + body).replace("\nu", "\nperson-").replace(",i", "-x,i")
    table.write_text(head + rows, encoding="utf-8")
    assert [train(recipe, run) for run in ("r1", "r2", "r3")] == [0, 0, 0]
    assert main.run(["rollback", str(recipe)]) == 0
    return recipe


def files_with(shop: Path, text: str) -> list[str]:
    """Return the files beside the pointer that contain the text."""
    return sorted(path.name for path in (shop.parent / "out").iterdir() if text.encode() in path.read_bytes())


def live(shop: Path) -> svc.Recommender:
    return svc.load(shop.parent / "out" / "books.svc", keys=KEY)


def test_every_version_forgets_and_the_log_stays_whole(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other users keep their answers. A rollback goes to the rewritten version that was live before."""
    before, others = history(shop, capsys), live(shop).recommend(OTHER)
    (shop.parent / "out" / "all.csv.manifest.json").write_text("{}", encoding="utf-8")
    assert len(files_with(shop, PERSON)) == 3
    assert main.run(["forget", str(shop), "--user", PERSON, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("would be rewritten") == 3
    assert "not touched" not in printed
    assert history(shop, capsys) == before
    assert main.run(["forget", str(shop), "--user", PERSON, "--user", "nobody"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("was rewritten as") == 3
    assert "not touched: the export all.csv\n" in printed
    assert "not touched: data, exports and copies elsewhere" in printed
    assert printed.count("which is live") == 1
    after = history(shop, capsys)
    assert files_with(shop, PERSON) == []
    facts = ("trained_at", "best_class", "best_score", "decision", "live", "held")
    assert [[version[name] for name in facts] for version in after] == [
        [version[name] for name in facts] for version in before
    ]
    assert not {version["sha8"] for version in before} & {version["sha8"] for version in after}
    assert main.run(["history", str(shop), "--verify"]) == 0
    shop_now = live(shop)
    assert shop_now.recommend(OTHER).equals(others)
    assert PERSON not in shop_now.users()
    assert shop_now.header["forgotten"] == 1
    log = [json.loads(line) for line in (shop.parent / "out" / "books.svc.log.jsonl").read_text().splitlines()]
    forgot = [line["version"]["forgot"] for line in log if line["action"] == "forget"]
    assert [found["count"] for found in forgot] == [2, 2, 2]
    assert main.run(["rollback", str(shop)]) == 0
    assert PERSON not in live(shop).users()
    shop.write_text(shop.read_text().replace("books.csv", '"${SVC_RECIPE_UNSET}"'), encoding="utf-8")
    assert main.run(["forget", str(shop), "--user", PERSON]) == 0
    assert "no version knows this user" in capsys.readouterr().out


def test_only_keys_that_sign_write(shop: Path, capsys: Any, monkeypatch: Any) -> None:
    """Keys that only verify are enough for a dry run, of versions with an Ed25519 signature."""
    monkeypatch.setenv("SVC_ARTIFACT_SIGNATURE", "ed25519")
    assert main.run(["forget", str(shop), "--user", OTHER]) == 0
    kid, key = parse_signing_keys(KEY).active
    monkeypatch.setenv("SVC_VERIFY_KEYS", public_entry(kid, key))
    monkeypatch.delenv("SVC_SIGNING_KEYS")
    assert main.run(["forget", str(shop), "--user", PERSON]) == 8
    assert "svc forget signs the versions anew" in last_error(capsys)["error"]
    assert main.run(["forget", str(shop), "--user", PERSON, "--dry-run"]) == 0


def test_versions_with_the_development_key_need_its_option(recipe: Path, capsys: Any, monkeypatch: Any) -> None:
    """Without --dev-allow-unsigned the key is missing, and outside of SVC_ENV=development the option is refused."""
    monkeypatch.delenv("SVC_SIGNING_KEYS")
    forget = ["forget", str(recipe), "--user", "u7"]
    assert main.run([*forget, "--dev-allow-unsigned"]) == 8
    monkeypatch.setenv("SVC_ENV", "development")
    unsigned = ["--dev-allow-unsigned", "--i-understand-this-loads-arbitrary-code"]
    assert main.run(["train", str(recipe), "--quiet", *unsigned]) == 0
    assert main.run(forget) == 8
    assert main.run([*forget, "--dev-allow-unsigned"]) == 0
    assert capsys.readouterr().out.count("was rewritten as") == 1


def test_a_hold_and_an_ed25519_signature_stay(shop: Path, capsys: Any, monkeypatch: Any) -> None:
    """The setting decides how the new versions are signed."""
    monkeypatch.setenv("SVC_ARTIFACT_SIGNATURE", "ed25519")
    assert main.run(["rollback", str(shop), "--hold"]) == 0
    assert main.run(["forget", str(shop), "--user", PERSON]) == 0
    (held,) = [version for version in history(shop, capsys) if version["held"]]
    assert held["live"]
    assert live(shop).header["forgotten"] == 1
    assert main.run(["history", str(shop), "--verify"]) == 0
    assert train(shop, "r4") == 0
    assert [version["sha8"] for version in history(shop, capsys) if version["live"]] == [held["sha8"]]


def test_versions_in_an_object_store_forget_too(recipe: Path, objects_in_memory: ObjectsInMemory, capsys: Any) -> None:
    recipe.write_text(recipe.read_text().replace("out/books.svc", "s3://shop/books.svc"), encoding="utf-8")
    assert [train(recipe, run) for run in ("r1", "r2")] == [0, 0]
    before = {path for path, content in objects_in_memory.store.items() if b"u17" in content.getvalue()}
    assert len(before) == 2
    assert main.run(["forget", str(recipe), "--user", "u17"]) == 0
    assert not before & {*objects_in_memory.store}
    assert not [path for path, content in objects_in_memory.store.items() if b"u17" in content.getvalue()]
    assert len(history(recipe, capsys)) == 2
    assert main.run(["history", str(recipe), "--verify"]) == 0


def test_a_server_with_serials_accepts_the_rewritten_version(shop: Path, monkeypatch: Any, tmp_path: Path) -> None:
    """A version that a rollback made live has a lower serial than one that was served."""
    from svc.artifact.replay import ReplayGuard
    from svc.artifact.store import open_store, verify_blob
    from svc.settings import Settings

    monkeypatch.setenv("SVC_STATE_DIR", str(tmp_path / "state"))
    settings, keys = Settings.from_env(), parse_signing_keys(KEY)
    assert [train(shop, run) for run in ("r4", "r5")] == [0, 0]
    store = open_store(str(shop.parent / "out" / "books.svc"), settings)

    def check() -> None:
        blob = store.read(1 << 30)
        parsed = verify_blob(blob, keys, settings)
        guard = ReplayGuard.of(settings)
        guard.check("books", parsed, blob, store, keys)
        guard.record_serial("books", parsed)

    check()
    assert main.run(["rollback", str(shop)]) == 0
    check()
    assert main.run(["forget", str(shop), "--user", PERSON]) == 0
    check()


def test_a_version_that_cannot_be_verified_stops_everything(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 5, and no file, line or pointer has changed."""
    damaged = sorted((shop.parent / "out").glob("books.*.svc"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    before = {path: path.read_bytes() for path in (shop.parent / "out").iterdir()}
    assert main.run(["forget", str(shop), "--user", PERSON]) == 5
    assert last_error(capsys)["code"] == "artifact_error"
    assert {path: path.read_bytes() for path in (shop.parent / "out").iterdir()} == before


def test_the_list_of_forgotten_users_keeps_trainings_from_reading_their_rows(
    shop: Path, capsys: Any, monkeypatch: Any
) -> None:
    """The next training drops the rows that the data still has, and counts them."""
    text = shop.read_text() + "cleansing: {forget: {source: {type: csv, path: gone.csv}, id_column: user}}\n"
    shop.write_text(text, encoding="utf-8")
    (shop.parent / "gone.csv").write_text("user\nperson-1-x\n", encoding="utf-8")
    (shop.parent / "ids.txt").write_text(f"{PERSON}\n\n{OTHER}\n", encoding="utf-8")
    assert main.run(["forget", str(shop), "--users", str(shop.parent / "ids.txt")]) == 0
    assert (shop.parent / "gone.csv").read_text() == f"user\nperson-1-x\n{PERSON}\n{OTHER}\n"
    capsys.readouterr()
    monkeypatch.setenv("SVC_LOG_FORMAT", "json")
    assert main.run(["train", str(shop), "--run-id", "r9"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if '"data_cleansed"' in line]
    rows = (shop.parent / "books.csv").read_text().splitlines()
    gone = ("person-1-x,", f"{PERSON},", f"{OTHER},")
    assert json.loads(line)["forgotten"] == sum(row.startswith(gone) for row in rows)
    assert files_with(shop, PERSON) == []


def test_an_id_that_csv_quotes_is_listed_once(shop: Path) -> None:
    text = shop.read_text() + "cleansing: {forget: {source: {type: csv, path: gone.csv}, id_column: user}}\n"
    shop.write_text(text, encoding="utf-8")
    for _ in range(2):
        assert main.run(["forget", str(shop), "--user", "Doe, Jane"]) == 0
    assert (shop.parent / "gone.csv").read_text() == 'user\n"Doe, Jane"\n'


@pytest.mark.parametrize(
    ("path", "options", "before", "after"),
    [
        ("gone.csv", "", b"\xef\xbb\xbfuser\nu1\n", b"\xef\xbb\xbfuser\nu1\na;\xc2\x85b\n"),
        ("gone.csv", "", b'"user"\r\n"u1"', b'"user"\r\n"u1"\na;\xc2\x85b\n'),
        ("gone.csv", ', delimiter: ";"', b'user\n"a;\xc2\x85b"\n', b'user\n"a;\xc2\x85b"\n'),
        ("gone.csv", ", encoding: latin-1", b"user\n\xfc1\n", b"user\n\xfc1\na;\x85b\n"),
        ("gone.csv", "", b"", b"user\na;\xc2\x85b\n"),
        ("gone.csv", "", b"user,when\nu1,1\n", None),
        ("gone.csv", "", b"user\n\xfc1\n", None),
        ("gone.csv.gz", "", gzip.compress(b"user\nu1\n", mtime=0), None),
        (".", "", None, None),
        ("gone*.csv", "", None, None),
    ],
)
def test_the_list_gets_the_ids_or_the_command_says_that_it_lacks_them(
    shop: Path, path: str, options: str, *, before: bytes | None, after: bytes | None, capsys: Any
) -> None:
    """A list keeps its form. A folder, a pattern and a table that cannot be continued stay as they are."""
    forget = f"cleansing: {{forget: {{source: {{type: csv, path: '{path}'{options}}}, id_column: user}}}}\n"
    shop.write_text(shop.read_text() + forget, encoding="utf-8")
    table = shop.parent / path
    if before is not None:
        table.write_bytes(before)
    (shop.parent / "ids.txt").write_text("a;\x85b\n", encoding="utf-8")
    assert main.run(["forget", str(shop), "--users", str(shop.parent / "ids.txt")]) == 0
    assert ("not touched: the list of cleansing.forget" in capsys.readouterr().out) == (after is None)
    assert (table.read_bytes() if table.is_file() else None) == (before if after is None else after)


def test_a_list_that_cannot_be_written_stops_everything(shop: Path, capsys: Any, monkeypatch: Any) -> None:
    forget = "cleansing: {forget: {source: {type: csv, path: gone.csv}, id_column: user}}\n"
    shop.write_text(shop.read_text() + forget, encoding="utf-8")

    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_write, "replace_file", refuse)
    assert main.run(["forget", str(shop), "--user", PERSON]) == 3
    assert "No space left" in last_error(capsys)["error"]
    assert len(files_with(shop, PERSON)) == 3


def test_the_only_file_of_a_recipe_without_versions_is_rewritten(recipe: Path, capsys: Any) -> None:
    recipe.write_text(recipe.read_text().replace(", versioning: append_sha, keep: 4", ""), encoding="utf-8")
    assert train(recipe, "r1") == 0
    assert main.run(["forget", str(recipe), "--user", "u7"]) == 0
    assert "was rewritten as" in capsys.readouterr().out
    assert "u7" not in live(recipe).users()
    assert not (recipe.parent / "out" / "books.svc.log.jsonl").exists()


def test_arms_and_the_served_log_forget_too(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An arm may have the artifact of another recipe, or one version of it. Lines of other units stay as they are."""
    other = shop.with_name("other.yaml")
    other.write_text(shop.read_text().replace("books.svc", "other.svc").replace("name: books", "name: other"), "utf-8")
    assert [train(other, run) for run in ("r1", "r2")] == [0, 0]
    pinned = history(other, capsys)[-1]["sha8"]
    arms = f"""
serving:
  experiment:
    name: e
    salt: pepper
    arms:
      - {{name: control, weight: 1}}
      - {{name: next, weight: 1, path: out/other.svc}}
      - {{name: old, weight: 1, path: out/other.{pinned}.svc}}
  served_log: {{path: served}}
"""
    shop.write_text(shop.read_text() + arms, encoding="utf-8")
    folder = shop.parent / "served"
    log = LogFile(ServedLog(path=str(folder)), "books")
    lines = [
        Line(0, "r", "books", "recommend", ("e", "pepper"), "next", "v", unit, [f"i{number}"]).encode(1.0)
        for number, unit in enumerate([PERSON, OTHER, None, PERSON])
    ]
    log.write(lines, 0)
    (folder / "books.19690101T0000.7.jsonl").write_bytes(lines[1] + b"    half of a line}\n" + lines[0])
    (folder / "films.19690101T0000.7.jsonl").write_bytes(lines[0])
    assert main.run(["forget", str(shop), "--user", PERSON]) == 0
    printed = capsys.readouterr().out
    assert files_with(shop, PERSON) == []
    assert printed.count("was rewritten as") == 5
    assert "4 lines removed from the served log" in printed
    moved = next(version["sha8"] for version in history(other, capsys)[-1:])
    assert f"the arm old has no model until its path names {moved} instead of {pinned}" in printed
    log.write(lines[2:3], 0)
    log.close()
    left = {
        path.name: [line for line in path.read_bytes().splitlines(keepends=True) if line.strip()]
        for path in folder.iterdir()
    }
    assert left == {
        f"books.19700101T0000.{os.getpid()}.jsonl": [lines[1], lines[2], lines[2]],
        "books.19690101T0000.7.jsonl": [lines[1]],
        "films.19690101T0000.7.jsonl": [lines[0]],
    }
    assert read_served(str(folder)).num_rows == 5
    assert main.run(["forget", str(shop), "--user", PERSON]) == 0
    assert "0 lines removed" in capsys.readouterr().out


@pytest.mark.parametrize("artifact", ["books", "other", "none"])
def test_an_artifact_that_cannot_be_verified_keeps_no_other_from_forgetting(
    shop: Path, capsys: pytest.CaptureFixture[str], artifact: str
) -> None:
    """The exit code is 5, and the artifact is named and as before. `none` does not exist."""
    other = shop.with_name("other.yaml")
    other.write_text(shop.read_text().replace("books.svc", "other.svc").replace("name: books", "name: other"), "utf-8")
    assert [train(other, run) for run in ("r1", "r2")] == [0, 0]
    arms = ["{name: control, weight: 1}", *(f"{{name: {n}, weight: 1, path: out/{n}.svc}}" for n in ("none", "other"))]
    experiment = (
        f"serving: {{experiment: {{name: e, salt: s, arms: [{', '.join(arms)}]}}, served_log: {{path: served}}}}"
    )
    served = shop.parent / "served" / "books.19690101T0000.7.jsonl"
    served.parent.mkdir()
    served.write_bytes(Line(0, "r", "books", "recommend", ("e", "s"), "next", "v", PERSON, ["i1"]).encode(1.0))
    shop.write_text(f"{shop.read_text()}{experiment}\n", encoding="utf-8")
    if artifact != "none":
        damaged = min((shop.parent / "out").glob(f"{artifact}.*.svc"))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    kept = [name for name in files_with(shop, PERSON) if name.startswith(artifact)]
    assert main.run(["forget", str(shop), "--user", PERSON]) == 5
    assert files_with(shop, PERSON) == kept
    assert not served.read_bytes().strip()
    named = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("NOT FORGOTTEN")]
    assert named == [f"NOT FORGOTTEN in {shop.parent}/out/{name}.svc" for name in dict.fromkeys(["none", artifact])]


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["--users", "none.txt"], 2), (["--user", "\udcff"], 2), (["--user", PERSON], 6)]
)
def test_wrong_usage_and_a_running_training_change_nothing(shop: Path, arguments: list[str], code: int) -> None:
    from svc.artifact.lock import run_lock
    from svc.recipe.load import load_recipe
    from svc.settings import Settings

    uri = load_recipe(shop, {}, settings=Settings(), for_serving=True).output_uri
    with run_lock(uri, timeout_s=0.0, settings=Settings()):
        assert main.run(["forget", str(shop), *arguments]) == code
    assert len(files_with(shop, PERSON)) == 3


@pytest.mark.system
def test_killed_at_any_moment_it_is_as_before_or_forgotten(shop: Path, capsys: Any) -> None:
    """The process ends before each of its writes and removals in turn. A second run finishes the work."""
    folder, whole = shop.parent / "out", {path: path.read_bytes() for path in (shop.parent / "out").iterdir()}
    kills = 0
    for number in range(50):
        for path in folder.iterdir():
            path.unlink()
        for path, content in whole.items():
            path.write_bytes(content)
        pid = os.fork()
        if not pid:
            _end_at(number)
            os._exit(main.run(["forget", str(shop), "--user", PERSON]))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        kills += code == 77
        users = live(shop).users()
        assert OTHER in users
        if not files_with(shop, PERSON):
            assert PERSON not in users
        assert main.run(["forget", str(shop), "--user", PERSON]) == 0
        assert files_with(shop, PERSON) == []
        assert main.run(["history", str(shop), "--verify"]) == 0
        if code == 0:
            break
    capsys.readouterr()
    assert kills >= 10


def _end_at(number: int) -> None:
    """End this process before its write or removal with this number, from 0, like SIGKILL."""
    calls = iter(range(10_000))

    def ending(original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == number:
                os._exit(77)
            return original(*arguments, **options)

        return call

    folder = store_local.LocalFolder
    for name in ("put", "remove"):
        setattr(folder, name, ending(getattr(folder, name)))
    Store.point_to = ending(Store.point_to)  # type: ignore[method-assign]
