"""Bad input to the commands: each ends with the exit code of its error and one clear last line, without a traceback."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.server import put
from tests.forked import Forked

if TYPE_CHECKING:
    from tests.e2e.conftest import Ended, Server, Shop


def assert_failed(ended: Ended, code: int, *words: str, event: str = "train_error") -> None:
    """Check exit code and event of the last record, that its error contains `words`, and that no traceback follows."""
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    last = ended.records[-1]
    assert (last["event"], last["exit_code"]) == (event, code)
    assert [word for word in words if word not in last["error"]] == []


def test_a_missing_recipe_ends_with_2(shop: Shop) -> None:
    """A training without a recipe file ends with exit code 2 and names the file."""
    shop.recipe.unlink()
    assert_failed(shop.train(), 2, "shop.yaml")


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "- a\n- list\n", "{", "\x00"])
def test_an_empty_or_broken_recipe_ends_with_2(shop: Shop, text: str) -> None:
    """A training with an empty or unparseable recipe ends with exit code 2 and names the file."""
    shop.recipe.write_text(text)
    assert_failed(shop.train(), 2, "shop.yaml")


def test_a_misspelt_key_is_named_with_the_nearest_valid_one(shop: Shop) -> None:
    """The error for an unknown recipe key names that key and the nearest valid one."""
    shop.edit("n_trials", "n_trails")
    assert_failed(shop.train(), 2, "n_trails", "n_trials")


def test_a_missing_source_file_ends_with_3(shop: Shop) -> None:
    """A training whose source file is missing ends with exit code 3 and names the file."""
    (shop.folder / "sales.csv").unlink()
    assert_failed(shop.train(), 3, "sales.csv")


def test_an_empty_csv_ends_with_3(shop: Shop) -> None:
    """A training on a CSV file of 0 bytes ends with exit code 3 and names the file."""
    (shop.folder / "sales.csv").write_text("")
    assert_failed(shop.train(), 3, "sales.csv")


def test_a_csv_without_header_ends_with_3(shop: Shop) -> None:
    """A training on a CSV file without a header ends with exit code 3 and names the missing column."""
    path = shop.folder / "sales.csv"
    path.write_text(path.read_text().partition("\n")[2])
    assert_failed(shop.train(), 3, "user_id")


def test_a_missing_column_is_named_beside_the_present_ones(shop: Shop) -> None:
    """The error for a missing column names it and the columns of the file."""
    shop.edit("item_column: item_id, time", "item_column: product, time")
    assert_failed(shop.train(), 3, "product", "item_id")


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_end_a_training_with_4(shop: Shop, rows: int) -> None:
    """A training on no row or one row ends with exit code 4 and not with an internal error."""
    path = shop.folder / "sales.csv"
    path.write_text("\n".join(path.read_text().splitlines()[: 1 + rows]) + "\n")
    ended = shop.train()
    assert_failed(ended, 4)
    assert ended.records[-1]["code"] != "internal_error"


def test_a_single_user_is_trained_or_refused_with_4(shop: Shop) -> None:
    """A training on one user ends with 0 if the search can score a model, or with exit code 4."""
    path = shop.folder / "sales.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *(line for line in lines if line.startswith("u7,"))]) + "\n")
    ended = shop.train()
    assert ended.code in (0, 4), ended.err
    assert ended.records[-1].get("code") != "internal_error"


def test_rows_without_ids_are_dropped_and_counted(shop: Shop) -> None:
    """Rows without a user or item id are dropped, and `data_cleansed` counts them."""
    path = shop.folder / "sales.csv"
    path.write_text(path.read_text() + ",i1,1700000000\nu1,,1700000000\n")
    trained = shop.train()
    assert trained.code == 0, trained.err
    assert trained.record("data_cleansed")["drop_count"] == 2
    assert trained.record("train_done")["n_users"] == 120


def test_a_training_accepts_integer_item_ids(shop: Shop) -> None:
    """A training succeeds if item ids look like integers, because every id is read as text."""
    for name in ("sales.csv", "items.csv"):
        path = shop.folder / name
        path.write_text(path.read_text().replace("i", "").replace("tem_d", "item_id").replace("user_d", "user_id"))
    sales = (shop.folder / "items.csv").read_text().replace("Thng", "Thing").replace("ttle", "title")
    (shop.folder / "items.csv").write_text(sales)
    assert shop.train().code == 0


def test_missing_signing_keys_end_a_training_before_data_is_read(shop: Shop) -> None:
    """A training without signing keys ends with exit code 8 before it fetches data."""
    ended = shop.train(SVC_SIGNING_KEYS="")
    assert_failed(ended, 8, "SVC_SIGNING_KEYS")
    assert "fetching_data" not in {record["event"] for record in ended.records}


def test_an_unwritable_output_folder_ends_a_training_before_data_is_read(shop: Shop) -> None:
    """A training whose output folder cannot be created ends with exit code 8 before it fetches data."""
    (shop.folder / "artifacts").write_text("a file where a folder should be")
    ended = shop.train()
    assert_failed(ended, 8)
    assert "fetching_data" not in {record["event"] for record in ended.records}


def test_a_full_disk_ends_a_training_with_5_and_without_leftovers(shop: Shop, small_disk: Path) -> None:
    """A training on a full disk ends with exit code 5, names the reason, and leaves no temporary file."""
    shop.edit("path: artifacts/shop.svc", f"path: {small_disk}/shop.svc")
    with (small_disk / "fill").open("wb") as file, contextlib.suppress(OSError):
        file.write(bytes(12 << 10))
    assert_failed(shop.train(), 5, "space")
    assert {path.name for path in small_disk.iterdir()} - {"fill", "shop.svc.lock"} == set()


def test_a_kill_during_the_write_leaves_a_whole_artifact(shop: Shop, artifact: bytes) -> None:
    """An artifact verifies after SIGKILL during the write, and the next run removes leftover files."""
    shop.give(artifact)
    process = Forked(["train", str(shop.recipe), "--quiet"], shop.environment, shop.folder)
    before = set(shop.artifact.parent.iterdir())
    while process.poll() is None and set(shop.artifact.parent.iterdir()) <= before:
        time.sleep(1e-4)
    process.kill()
    process.communicate()
    assert shop.svc("inspect", str(shop.artifact)).code == 0
    assert shop.train().code == 0
    assert {path.name for path in shop.artifact.parent.iterdir()} <= {"shop.svc", "shop.svc.lock"}


def test_a_port_in_use_is_named(shop: Shop) -> None:
    """A server whose port is in use ends with exit code 8 and names the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = shop.process("serve", "--recipes", str(shop.folder), "--port", port)
    assert_failed(ended, 8, port, event="command_error")


def test_a_server_without_signing_keys_does_not_start(shop: Shop) -> None:
    """A server without signing keys ends with exit code 8, because it could verify no artifact."""
    ended = shop.process("serve", "--recipes", str(shop.folder), "--port", "0", SVC_SIGNING_KEYS="")
    assert_failed(ended, 8, "SVC_SIGNING_KEYS", event="command_error")


def test_inspect_refuses_artifacts_that_it_cannot_verify(shop: Shop, artifact: bytes) -> None:
    """`svc inspect` refuses artifacts that it cannot verify with exit code 5.

    Unknown kids, wrong signatures and truncated files each have their own error.
    """
    whole = shop.give(artifact)
    path = str(shop.artifact)
    cases: list[tuple[bytes, dict[str, str], str]] = [
        (whole, {"SVC_SIGNING_KEYS": "other:" + "5a" * 32}, "unknown kid: test"),
        (whole, {"SVC_SIGNING_KEYS": "test:" + "00" * 32}, "signature mismatch"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), {}, "signature mismatch"),
        (whole[: len(whole) // 2], {}, "magic bytes mismatch"),
        (b"not an artifact at all", {}, "magic bytes mismatch"),
        (b"", {}, "magic bytes mismatch"),
    ]
    for data, environment, text in cases:
        put(shop.artifact, data)
        assert_failed(shop.svc("inspect", path, **environment), 5, text, event="command_error")
    assert_failed(shop.svc("inspect", path + ".not-there"), 5, event="command_error")


def test_a_truncated_artifact_is_a_stub_until_a_good_one_comes(
    shop: Shop, serve: Callable[..., Server], artifact: bytes
) -> None:
    """A server with a truncated artifact starts and answers 503 for its recipe.

    It loads a good artifact without a restart.
    """
    whole = shop.give(artifact)
    put(shop.artifact, whole[:100])
    server = serve()
    assert server.ask("/v1/health")[0] == 503
    assert server.ask("/v1/recipes/shop:recommend", {"user_id": "u1"})[1]["code"] == "RECIPE_UNAVAILABLE"
    status, details = server.ask("/v1/health/details")
    assert (status, details["recipes"]["shop"]["loaded"]) == (503, False)
    put(shop.artifact, whole)
    server.wait_for("artifact_loaded")
    assert server.ask("/v1/recipes/shop:recommend", {"user_id": "u1"})[0] == 200


def test_validate_prints_one_line_for_each_check(shop: Shop) -> None:
    """`svc validate` prints only `ok` lines for a good recipe, and `FAILED` with the name of a missing column."""
    good = shop.svc("validate", str(shop.recipe))
    assert good.code == 0, good.err
    assert all(line.startswith("ok") for line in good.out.splitlines())
    shop.edit("user_column: user_id", "user_column: reader")
    bad = shop.svc("validate", str(shop.recipe))
    assert bad.code == 3
    assert any(line.startswith("FAILED") and "reader" in line for line in bad.out.splitlines())


def test_a_closed_pipe_is_no_error(shop: Shop) -> None:
    """A command whose stdout is closed, as in `svc schema | head -1`, prints no error."""
    process = shop.start("schema", fresh=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=30)
    assert err == ""
