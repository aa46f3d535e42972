"""What do four processes on one study gain over one, with the same budget?

    python -m benchmarks.shared_search recipe.yaml postgresql+psycopg://postgres@127.0.0.1/test

The recipe's own `storage_path` is replaced by the given one. Prints wall seconds, the trials that used the budget, and
how many trials had the parameters of an earlier one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import optuna
import yaml

from svc.training.search import budget
from svc.training.search.storage import locate, open_storage


def write_recipe(source: Path, storage: str, folder: Path) -> tuple[Path, str]:
    recipe = yaml.safe_load(source.read_text(encoding="utf-8"))
    recipe.setdefault("training", {})["storage_path"] = storage
    recipe["source"]["path"] = str((source.parent / recipe["source"]["path"]).absolute())
    path = folder / "shared.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path, recipe["name"]


def measure(recipe: Path, name: str, storage: str, n_processes: int) -> str:
    run_id = uuid.uuid4().hex[:12]
    command = [sys.executable, "-m", "svc", "train", str(recipe), "--run-id", run_id, "--search-only", "--quiet"]
    begin = time.monotonic()
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(n_processes)]
    codes = [process.wait() for process in processes]
    seconds = time.monotonic() - begin
    opened = open_storage(locate(storage, recipe.parent))
    study = optuna.load_study(study_name=f"svc_{name}_{run_id}", storage=opened.backend)
    used = [trial for trial in study.get_trials(deepcopy=False) if budget.uses_budget(trial)]
    opened.close()
    distinct = {(trial.user_attrs[budget.ALGORITHM], str(sorted(trial.params.items()))) for trial in used}
    best = max(trial.value for trial in used if trial.value is not None)
    return (
        f"{n_processes} processes: {seconds:6.1f} s  {len(used)} trials, {len(used) - len(distinct)} twice, "
        f"best {best:.5f}, exit codes {codes}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", type=Path)
    parser.add_argument("storage")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        recipe, name = write_recipe(options.recipe, options.storage, Path(folder))
        for n_processes in options.processes:
            print(measure(recipe, name, options.storage, n_processes), flush=True)


if __name__ == "__main__":
    main()
