"""The commands of the batch manifests, as processes with PostgreSQL and S3, of which some are killed."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pyarrow.parquet as pq
import pytest
import yaml

from svc.training.search import budget
from svc.training.search.storage import locate, open_storage
from tests.e2e.server import until
from tests.forked import Forked
from tests.pages import ROOT
from tests.serving.artifacts import SIGNING_KEYS

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]
BATCH = ROOT / "docs/deploy/kubernetes/batch"
N_TRIALS, N_SHARDS = 12, 6
RECIPE = """
name: books
source: {{type: csv, path: {bucket}/purchases.csv}}
schema: {{user_column: user_id, item_column: item_id}}
training:
  algorithms: [IALS, CosineKNN, TopPop]
  n_trials: {n_trials}
  cutoff: 5
  storage_path: "${{SVC_RECIPE_STORAGE}}"
  split: {{heldout_ratio: 0.3}}
output: {{path: {bucket}/models/books.svc, versioning: append_sha}}
"""


def jobs(file: str) -> dict[str, dict[str, Any]]:
    """Return the jobs of a manifest by their names."""
    return {job["metadata"]["name"]: job for job in yaml.safe_load_all((BATCH / file).read_text())}


def arguments(job: Mapping[str, Any], places: Mapping[str, str]) -> list[str]:
    """Return the arguments of svc in the container of a job, which may run svc in a shell.

    Texts of the manifest are replaced by those in `places`.
    """
    (container,) = job["spec"]["template"]["spec"]["containers"]
    found = [str(argument) for argument in container.get("args", ())]
    if not found:
        _, _, script, *values = container["command"]
        (line,) = re.findall(r"^svc (.*) &$", script, re.MULTILINE)
        found = [values[int(word[1:])] if word.startswith("$") else word for word in shlex.split(line)]
    for old, new in places.items():
        found = [argument.replace(old, new) for argument in found]
    return found


def secrets_of(job: Mapping[str, Any]) -> list[str]:
    return [entry["secretRef"]["name"] for entry in job["spec"]["template"]["spec"]["containers"][0]["envFrom"]]


def environment(*, signing: bool) -> dict[str, str]:
    """Return a container's environment: storage, credentials, and with `signing` the signing key."""
    found = {name: value for name, value in os.environ.items() if name != "SVC_SIGNING_KEYS"}
    found |= {"SVC_RECIPE_STORAGE": os.environ["SVC_TEST_POSTGRES_URL"], "SVC_LOG_FORMAT": "json"}
    found |= {"SVC_SCORING_THREADS": "1"}
    return found | ({"SVC_SIGNING_KEYS": SIGNING_KEYS} if signing else {})


def start(command: list[str], log: Path, *, signing: bool) -> Forked:
    return Forked(command, environment(signing=signing), log=log)


@pytest.fixture
def places(s3_bucket: tuple[str, Any], tmp_path: Path) -> dict[str, str]:
    """Write data and recipe. Return the replacement of each path, run id and number of shards in the manifests."""
    if "SVC_TEST_POSTGRES_URL" not in os.environ:
        pytest.skip("SVC_TEST_POSTGRES_URL is not set")
    bucket, filesystem = s3_bucket
    random = np.random.default_rng(0)
    rows = zip(random.integers(0, 900, 20_000), random.zipf(1.2, 20_000) % 120, strict=True)
    lines = "".join(f"{user},{item}\n" for user, item in rows)
    filesystem.pipe_file(f"{bucket}/purchases.csv", f"user_id,item_id\n{lines}".encode())
    (tmp_path / "books.yaml").write_text(RECIPE.format(bucket=bucket, n_trials=N_TRIALS))
    return {
        "/etc/svc/recipes": str(tmp_path),
        "s3://example-models": f"{bucket}/models",
        "s3://example-exports": f"{bucket}/exports",
        "2026-01-31": f"run-{secrets.token_hex(6)}",
        "/16": f"/{N_SHARDS}",
    }


def trials(run_id: str) -> list[Any]:
    storage = open_storage(locate(os.environ["SVC_TEST_POSTGRES_URL"], Path()))
    try:
        return optuna.load_study(study_name=f"svc_books_{run_id}", storage=storage.backend).get_trials(deepcopy=False)
    finally:
        storage.close()


def wait_for_trials(log: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while log.read_text().count('"trial_done"') < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def kill_early(command: list[str], log: Path) -> None:
    """Start a command and kill it after its first line. Try again if it has ended by itself."""
    code = 0
    while code >= 0:
        log.unlink(missing_ok=True)
        process = start(command, log, signing=True)
        until(lambda: log.stat().st_size > 0)
        process.kill()
        code = process.wait()


def test_only_the_last_step_holds_the_signing_key() -> None:
    """Search workers have only the secret for the data."""
    found = jobs("search-job.yaml")
    assert secrets_of(found["svc-search-books"]) == ["svc-search-data"]
    assert secrets_of(found["svc-sign-books"]) == ["svc-search-data", "svc-train-keys"]


def test_four_search_workers_share_one_budget(
    places: dict[str, str], tmp_path: Path, s3_bucket: tuple[str, Any]
) -> None:
    """One worker is killed and restarted. The budget is used exactly once, and the last step counts all trials."""
    found = jobs("search-job.yaml")
    search, sign = (arguments(found[name], places) for name in ("svc-search-books", "svc-sign-books"))
    workers = [start(search, tmp_path / f"search-{number}.log", signing=False) for number in range(4)]
    wait_for_trials(tmp_path / "search-0.log", 1)
    workers[0].kill()
    assert workers[0].wait() < 0
    workers[0] = start(search, tmp_path / "search-4.log", signing=False)
    last = start(sign, tmp_path / "sign.log", signing=True)
    logs = [*tmp_path.glob("*.log")]
    for process in (*workers, last):
        assert process.wait(300) == 0, "\n".join(log.read_text()[-2000:] for log in logs)
    used = [trial for trial in trials(places["2026-01-31"]) if budget.uses_budget(trial)]
    assert len(used) == N_TRIALS
    assert len({trial.number for trial in used}) == N_TRIALS
    assert all(trial.state.is_finished() for trial in used)
    done = json.loads((tmp_path / "sign.log").read_text().splitlines()[-1])
    assert (done["event"], done["trials"]) == ("train_done", N_TRIALS)
    assert s3_bucket[1].exists(f"{s3_bucket[0]}/models/books.svc")


def test_shards_of_an_indexed_job_export_each_row_once(
    places: dict[str, str], tmp_path: Path, s3_bucket: tuple[str, Any]
) -> None:
    """Four shards run at a time, and one is killed and restarted. The last one merges all of them."""
    bucket, filesystem = s3_bucket
    (tmp_path / "books.yaml").write_text(RECIPE.format(bucket=bucket, n_trials=3))
    training = ["train", str(tmp_path / "books.yaml"), "--quiet"]
    assert start(training, tmp_path / "train.log", signing=True).wait(200) == 0, (tmp_path / "train.log").read_text()
    job = jobs("export-job.yaml")["svc-export-books"]
    assert (job["spec"]["completionMode"], secrets_of(job)) == ("Indexed", ["svc-export-keys"])
    command = arguments(job, places)

    def run(index: int) -> None:
        shard = [argument.replace("$(SHARD)", str(index)) for argument in command]
        if index == 2:
            kill_early(shard, tmp_path / "killed.log")
        log = tmp_path / f"shard-{index}.log"
        assert start(shard, log, signing=True).wait(120) == 0, log.read_text()

    with ThreadPoolExecutor(4) as slots:
        list(slots.map(run, range(N_SHARDS)))
    merged = json.loads(filesystem.cat_file(f"{bucket}/exports/books.parquet.manifest.json"))
    assert [part["path"] for part in merged["parts"]] == [f"books.{i}-of-{N_SHARDS}.parquet" for i in range(N_SHARDS)]
    whole = tmp_path / "whole.parquet"
    alone = ["recommend", f"{bucket}/models/books.svc", "--output", str(whole)]
    assert start(alone, tmp_path / "whole.log", signing=True).wait(120) == 0
    parts = [filesystem.open(f"{bucket}/exports/{part['path']}") for part in merged["parts"]]
    rows = [tuple(row.values()) for part in parts for row in pq.read_table(part).to_pylist()]
    expected = [tuple(row.values()) for row in pq.read_table(whole).to_pylist()]
    assert sorted(rows) == sorted(expected)
    assert merged["rows"] == len(expected) > 10_000
