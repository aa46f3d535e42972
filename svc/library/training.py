"""Training from Python: `svc.train`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from svc import logs
from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import open_store, read_verified
from svc.library.keys import Keys, keys_text
from svc.library.progress import LineProgress, line_for_here
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.recipe.schema import Training
from svc.recipe.variables import recipe_variables
from svc.settings import Settings
from svc.sources.base import check_spec
from svc.training.progress import NullProgress, Progress
from svc.training.run import TrainOptions, train_or_raise


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training gave. A model that `promotion.mode: enforce` refused is written and has `promoted` False.

    Attributes:
        artifact: Path or URI of the written artifact, for `svc.load`.
        model_version: `sha256:` and the digest of the file.
        best_class: The algorithm that won.
        best_score: Its score on the validation split.
        promoted: Whether the recipe's `output.path` now leads to this model.
        header: All that the artifact says of itself.
    """

    artifact: str
    model_version: str
    best_class: str
    best_score: float
    promoted: bool
    header: Mapping[str, Any] = field(repr=False)


def train(
    recipe: str | Path,
    *,
    keys: Keys = None,
    run_id: str | None = None,
    variables: Mapping[str, str] | None = None,
    report: str | Path | None = None,
    progress: bool | None = None,
    **overrides: Any,
) -> TrainResult:
    """Train a recipe and write its signed artifact: `svc train` for Python.

    Args:
        recipe: The recipe, a YAML file.
        keys: Signing keys as for `svc.load`; the first one signs.
        run_id: Id of the run; the same id resumes its search in `training.storage_path`.
        variables: `SVC_RECIPE_*` values for `${...}` in the recipe, beside those of the environment.
        report: Where to write an HTML report (extra `report`).
        progress: Whether to show progress; None: in notebooks and on terminals.
        **overrides: Keys of the recipe, or of its `training` block, whose values replace those of the file.
            Mappings are merged: `output={"path": "test.svc"}` leaves `versioning` alone.

    Raises:
        svc.errors.SvcError: In the form that says what failed: RecipeError, DataSourceError, TrainingError,
            LockContestedError, ArtifactWriteError, ConfigError.
    """
    settings = Settings.from_env()
    settings = replace(settings, signing_keys=keys_text(keys, settings), signing_keys_file=None)
    logs.configure_for_library()
    given = recipe_variables({**os.environ, **(variables or {})}, ())
    loaded = load_recipe(
        Path(recipe), given, settings=settings, check_source=check_spec, overrides=_in_place(overrides)
    )
    options = TrainOptions(
        run_id=run_id or secrets.token_hex(6),
        variables=given,
        fail_on_busy=True,
        report=None if report is None else Path(report),
    )
    shown = _progress(progress)
    try:
        artifact = train_or_raise(loaded, options, settings, shown)
    finally:
        shown.close()
    return _result(loaded, artifact, settings)


def _in_place(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides where the recipe has them: what only `training` knows goes there."""
    tree: dict[str, Any] = {}
    for name, value in overrides.items():
        if name in Training.model_fields:
            tree.setdefault("training", {})[name] = value
        elif isinstance(value, Mapping):
            tree[name] = {**tree.get(name, {}), **value}
        else:
            tree[name] = value
    return tree


def _progress(wanted: bool | None) -> Progress:
    line = line_for_here() if wanted is not False else None
    return NullProgress() if line is None else LineProgress(line)


def _result(loaded: LoadedRecipe, artifact: str, settings: Settings) -> TrainResult:
    blob, parsed = read_verified(artifact, parse_signing_keys(settings.signing_keys), settings)
    header = parsed.header
    return TrainResult(
        artifact=artifact,
        model_version=f"sha256:{blob.sha256}",
        best_class=str(header["best_class"]),
        best_score=float(header["best_score"]),
        promoted=_is_live(loaded, blob.sha256, settings),
        header=header,
    )


def _is_live(loaded: LoadedRecipe, sha256: str, settings: Settings) -> bool:
    store = open_store(loaded.output_uri, settings)
    try:
        store.marker()
    except FileNotFoundError:  # a refused first model leaves no pointer
        return False
    return store.read(settings.max_artifact_bytes).sha256 == sha256
