"""The checks of `svc validate`: what can be known before a training without reading the data whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from svc.errors import SvcError
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source
from svc.training.algorithms import check_available
from svc.training.data import feature_context, interaction_context
from svc.training.storage import preflight


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `exit_code` is what a training would end with because of it, 0 if `ok`."""

    name: str
    ok: bool
    detail: str
    exit_code: int = 0


def validate(loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str]) -> Iterator[Check]:
    """Check algorithms, search storage and every source, one after another; a failed one does not end the rest.

    What only the data tells, such as empty feature vocabularies, stays unknown.
    """
    training = loaded.recipe.training
    yield from _check("algorithms", lambda: _algorithms(training.algorithms))
    yield from _check("training.storage_path", lambda: _storage(training.storage_path, loaded))
    for name, spec, context in _sources(loaded, settings, variables):
        yield from _check(name, partial(_probe, spec, context))


def _check(name: str, look: Callable[[], list[str]]) -> Iterator[Check]:
    try:
        for detail in look():
            yield Check(name, True, detail)
    except SvcError as error:
        yield Check(name, False, error.message, error.exit_code)


def _algorithms(names: tuple[str, ...]) -> list[str]:
    check_available(names)
    return [", ".join(names)]


def _storage(storage_path: str, loaded: LoadedRecipe) -> list[str]:
    location = preflight(storage_path, loaded.base_dir)
    if location.path is not None:
        return [f"SQLite file {location.path} can be written"]
    return ["the database answers" if location.shared else "trials are kept in memory"]


def _sources(
    loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str]
) -> Iterator[tuple[str, object, SourceContext]]:
    recipe = loaded.recipe
    yield "source", recipe.source, interaction_context(loaded, settings, variables)
    for name in ("item", "user"):
        side = getattr(recipe.features, name, None)
        if side is not None:
            yield f"features.{name}.source", side.source, feature_context(loaded, side, settings, variables)
    if recipe.item_metadata is not None:
        metadata = recipe.item_metadata
        context = SourceContext(
            base_dir=loaded.base_dir,
            settings=settings,
            columns=tuple(dict.fromkeys((metadata.id_column, *metadata.fields))),
            text_columns=frozenset({metadata.id_column}),
            purpose="metadata",
            variables=variables,
            progress=None,
        )
        yield "item_metadata.source", metadata.source, context


def _probe(spec: object, context: SourceContext) -> list[str]:
    source = build_source(spec, context)  # type: ignore[arg-type]
    probe = getattr(source, "probe", None)
    return probe() if probe is not None else ["this source cannot be probed; a training will read it"]
