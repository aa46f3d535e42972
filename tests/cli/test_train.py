"""`svc train`: how a run ends that never began, and where its outcome goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli import main
from svc.cli.train import check_metrics_file, write_metrics_file
from svc.errors import ConfigError, UsageError
from svc.metrics import TRAINING_METRICS
from tests.cli.conftest import history


def test_a_recipe_that_cannot_be_loaded_ends_as_a_failed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line is `train_error` with the run's id; the name is that of the file; the metrics file says failed."""
    recipe, metrics = tmp_path / "books.yaml", tmp_path / "svc.prom"
    recipe.write_text("name: books\n")
    assert main.run(["train", str(recipe), "--run-id", "nightly", "--metrics-file", str(metrics)]) == 2
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (last["event"], last["name"], last["run_id"], last["exit_code"]) == ("train_error", "books", "nightly", 2)
    assert 'recipe="books"' in metrics.read_text()


def test_a_run_without_an_id_is_given_one(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve hex digits, another one each time; `--quiet` writes the outcome alone."""
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
    """An alert on its age fires although the file is new."""
    path = tmp_path / "books.prom"
    write_metrics_file(path, "books", 0, 12.5)
    first = values(path)
    assert first.keys() == {metric.name for metric in TRAINING_METRICS} - {"svc_promotion_total"}
    assert (first["svc_train_last_exit_code"], first["svc_train_last_duration_seconds"]) == (0, 12.5)
    write_metrics_file(path, "books", 4, 1)
    second = values(path)
    assert second["svc_train_last_exit_code"] == 4
    assert second["svc_train_last_success_timestamp_seconds"] == first["svc_train_last_success_timestamp_seconds"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["books.prom"]


def test_decisions_are_counted_from_file_to_file(tmp_path: Path) -> None:
    """A counter: both series from the first decision on, kept by runs that fail or are not asked."""
    path = tmp_path / "books.prom"
    write_metrics_file(path, "books", 0, 1)
    assert "svc_promotion_total" not in path.read_text(encoding="utf-8")
    for exit_code, decision in ((0, "promoted"), (9, "refused"), (9, "refused"), (4, None)):
        write_metrics_file(path, "books", exit_code, 1, decision)
    text = path.read_text(encoding="utf-8")
    assert text.count("# TYPE svc_promotion_total counter\n") == 1
    assert 'svc_promotion_total{recipe="books",decision="promoted"} 1.000\n' in text
    assert 'svc_promotion_total{recipe="books",decision="refused"} 2.000\n' in text


def test_a_refused_model_is_a_training_that_went_well(tmp_path: Path) -> None:
    """It did what it should; the age of the live model tells the rest."""
    path = tmp_path / "books.prom"
    write_metrics_file(path, "books", 9, 1, "refused")
    assert values(path)["svc_train_last_exit_code"] == 9
    assert "svc_train_last_success_timestamp_seconds" in values(path)


def test_without_a_success_there_is_no_time_of_one(tmp_path: Path) -> None:
    """A zero would be a success in 1970."""
    write_metrics_file(tmp_path / "a.prom", "a", 3, 1)
    assert "svc_train_last_success_timestamp_seconds" not in values(tmp_path / "a.prom")


def test_a_file_that_could_not_be_read_or_written_is_refused_first(tmp_path: Path) -> None:
    """Not after an hour of training."""
    with pytest.raises(UsageError, match=r"must end in \.prom"):
        check_metrics_file(tmp_path / "books.txt")
    for path in (tmp_path / "nowhere" / "books.prom", tmp_path / "folder.prom"):
        (tmp_path / "folder.prom").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=f"{path} cannot be written: .* is missing or closed"):
            check_metrics_file(path)
        with pytest.raises(ConfigError, match=f"{path} cannot be written: (No such|Is a dir)"):
            write_metrics_file(path, "books", 0, 1)


def test_a_recipe_that_cannot_be_loaded_counts_under_its_file(tmp_path: Path) -> None:
    """Monitors see it like any failed run."""
    (tmp_path / "books.yaml").write_text("name: [")
    path = tmp_path / "books.prom"
    assert main.run(["train", str(tmp_path / "books.yaml"), "--metrics-file", str(path)]) == 2
    assert 'svc_train_last_exit_code{recipe="books"} 2' in path.read_text(encoding="utf-8")
