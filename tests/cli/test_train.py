"""`svc train`: runs that cannot start, and the metrics file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli import main
from svc.cli.train import check_metrics_file, write_metrics_file
from svc.errors import ConfigError, UsageError
from svc.metrics import TRAINING_METRICS
from tests.cli.conftest import history, last_error


def test_a_recipe_that_cannot_be_loaded_ends_as_a_failed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line is `train_error` with the run id and the file's name, and the metrics file counts a failure."""
    recipe, metrics = tmp_path / "books.yaml", tmp_path / "svc.prom"
    recipe.write_text("name: books\n")
    assert main.run(["train", str(recipe), "--run-id", "nightly", "--metrics-file", str(metrics)]) == 2
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (last["event"], last["name"], last["run_id"], last["exit_code"]) == ("train_error", "books", "nightly", 2)
    assert 'recipe="books"' in metrics.read_text()


def test_the_default_run_id_is_unique(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The id has twelve hex digits. With `--quiet` the outcome is the only line."""
    ids = set()
    for _ in range(2):
        assert main.run(["train", str(recipe), "--quiet"]) == 0
        (last,) = map(json.loads, capsys.readouterr().err.splitlines())
        assert last["event"] == "train_done"
        ids.add(last["run_id"])
    assert len(ids) == 2
    assert all(len(run_id) == 12 and int(run_id, 16) >= 0 for run_id in ids)
    assert history(recipe, capsys)[0]["live"]


def values(path: Path) -> dict[str, float]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_a_failure_keeps_the_time_of_the_last_success(tmp_path: Path) -> None:
    """An alert on this time fires although the metrics file is new."""
    path = tmp_path / "books.prom"
    write_metrics_file(path, "books", 0, 12.5)
    first = values(path)
    assert first.keys() == {metric.name for metric in TRAINING_METRICS} - {"svc_promotion_total"}
    assert (first["svc_train_last_exit_code"], first["svc_train_last_duration_seconds"]) == (0, 12.5)
    with path.open("a") as file:
        file.write('other{recipe="books"} 1.2.3\n')  # what another program wrote does not matter
    write_metrics_file(path, "books", 4, 1)
    second = values(path)
    assert second["svc_train_last_exit_code"] == 4
    assert second["svc_train_last_success_timestamp_seconds"] == first["svc_train_last_success_timestamp_seconds"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["books.prom"]


def test_promotion_decisions_are_counted_across_runs(tmp_path: Path) -> None:
    """Both counters exist from the first decision on. Runs without a decision keep them."""
    path = tmp_path / "books.prom"
    write_metrics_file(path, "books", 0, 1)
    assert "svc_promotion_total" not in path.read_text(encoding="utf-8")
    for exit_code, decision in ((0, "promoted"), (9, "refused"), (9, "refused"), (4, None)):
        write_metrics_file(path, "books", exit_code, 1, decision)
    text = path.read_text(encoding="utf-8")
    assert text.count("# TYPE svc_promotion_total counter\n") == 1
    assert 'svc_promotion_total{recipe="books",decision="promoted"} 1.000\n' in text
    assert 'svc_promotion_total{recipe="books",decision="refused"} 2.000\n' in text


def test_a_training_with_a_refused_model_is_a_success(tmp_path: Path) -> None:
    """The training completed. The age of the live model is watched separately."""
    path = tmp_path / "books.prom"
    write_metrics_file(path, "books", 9, 1, "refused")
    assert values(path)["svc_train_last_exit_code"] == 9
    assert "svc_train_last_success_timestamp_seconds" in values(path)


def test_without_a_success_its_time_is_missing(tmp_path: Path) -> None:
    """The metric is omitted, because a time of 0 would be a success in 1970."""
    write_metrics_file(tmp_path / "a.prom", "a", 3, 1)
    assert "svc_train_last_success_timestamp_seconds" not in values(tmp_path / "a.prom")


def test_an_unusable_metrics_file_is_refused_before_training(tmp_path: Path) -> None:
    """The check comes before the training, which may take an hour."""
    with pytest.raises(UsageError, match=r"must end in \.prom"):
        check_metrics_file(tmp_path / "books.txt")
    for path in (tmp_path / "nowhere" / "books.prom", tmp_path / "folder.prom"):
        (tmp_path / "folder.prom").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=f"{path} cannot be written: .* is missing or not writable"):
            check_metrics_file(path)
        with pytest.raises(ConfigError, match=f"{path} cannot be written: (No such|Is a dir)"):
            write_metrics_file(path, "books", 0, 1)


@pytest.mark.parametrize(("name", "exit_code"), [("books.txt", 2), ("nowhere/books.prom", 8)])
def test_a_training_does_not_start_with_an_unusable_metrics_file(
    recipe: Path, capsys: pytest.CaptureFixture[str], name: str, exit_code: int
) -> None:
    """The error names the option, and no artifact is written."""
    assert main.run(["train", str(recipe), "--metrics-file", str(recipe.parent / name)]) == exit_code
    assert str(last_error(capsys)["error"]).startswith("--metrics-file: ")
    assert not (recipe.parent / "out").exists()


def test_a_recipe_that_cannot_be_loaded_counts_under_its_file_name(tmp_path: Path) -> None:
    """The metrics file counts it like any other failed run."""
    (tmp_path / "books.yaml").write_text("name: [")
    path = tmp_path / "books.prom"
    assert main.run(["train", str(tmp_path / "books.yaml"), "--metrics-file", str(path)]) == 2
    assert 'svc_train_last_exit_code{recipe="books"} 2' in path.read_text(encoding="utf-8")
