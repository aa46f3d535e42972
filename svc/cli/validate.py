"""`svc validate`: check a recipe, its sources and its search storage before training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import typer

from svc.cli.common import EnvVar, RecipeFile, load, progress_for, verifying_keys
from svc.env_file import environment
from svc.errors import DataSourceError, FeaturesNotSupported, FeatureValueUnusable, SvcError
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.asking.item_lists import NewItemList
    from svc.model.model import Model
    from svc.recipe.load import LoadedRecipe
    from svc.training.validate import Check

_NEW_ITEMS = "serving.new_items"
EPILOG = """
[bold]Examples[/bold]
  svc validate recipes/movies.yaml
  svc validate recipes/movies.yaml --env-var SVC_RECIPE_DAY=2026-01-31

[bold]Exit codes[/bold]
  0 all checks hold   2 bad recipe or usage   3 data source
  4 training could not use the data           8 configuration
"""


def command(recipe_file: RecipeFile, env_var: EnvVar = None) -> int:
    """Check a recipe, its sources and its search storage, without training. Prints one line for each check."""
    settings = Settings.from_env(environment(recipe_file.parent))
    with progress_for(settings):
        loaded, variables = load(recipe_file, env_var, settings)
        typer.echo(_line("ok", "recipe", f"{recipe_file} is {loaded.recipe.name}, hash {loaded.recipe_hash}"))
        for warning in loaded.warnings:
            typer.echo(_line("note", "recipe", warning.message))
        from itertools import chain

        from svc.training.validate import validate

        failed: Check | None = None
        # Lazily, so that the result of a check is printed before the next one begins.
        for check in chain(validate(loaded, settings, variables), check_new_items(loaded, settings, variables)):
            result, code = ("ok", "") if check.ok else ("FAILED", f" (code {check.code}, exit code {check.exit_code})")
            typer.echo(_line(result, check.name, check.detail + code))
            # The first failure decides the exit code, because later ones may follow from it.
            failed = failed or (None if check.ok else check)
    return failed.exit_code if failed else 0


def _line(result: str, name: str, detail: str) -> str:
    return f"{result:<7} {name}: {detail}"


def check_new_items(loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str]) -> Iterator[Check]:
    """Yield one check of the recipe's list of new items, if it has one.

    The check reads the whole list. If the recipe's model can be verified, it counts the items that are new to the model
    and those that the model knows. Otherwise it counts the items, and tells why there is no model.
    """
    from svc.asking.item_lists import read_new_items
    from svc.training.validate import Check

    declared = loaded.recipe.serving.new_items
    if declared is None:
        return
    # Before the list, whose permitted size depends on the number of the model's items.
    model = _verified_model(loaded, settings)
    try:
        listed = read_new_items(loaded, settings, variables, 0 if isinstance(model, SvcError) else model.n_items)
        if isinstance(model, SvcError):
            detail = f"{len(listed.ids)} items, not compared with a model: {model.message}"
        else:
            n_new = len(model.new_items(listed.ids, listed.features, declared.max_share, declared.min_share))
            detail = f"{len(listed.ids)} items: {n_new} are new, and the model knows {len(listed.ids) - n_new}"
            detail += _unknown_words(listed, model)
        yield Check(_NEW_ITEMS, True, detail)
    # Errors of requests elsewhere, so their own exit codes would not fit a table.
    except (FeatureValueUnusable, FeaturesNotSupported) as error:
        detail = f"the model cannot use the list: {error.message}"
        yield Check(_NEW_ITEMS, False, detail, DataSourceError.exit_code, DataSourceError.code)
    except SvcError as error:
        yield Check(_NEW_ITEMS, False, error.message, DataSourceError.exit_code, DataSourceError.code)


def _unknown_words(listed: NewItemList, model: Model) -> str:
    """Return a note on how many words and labels of the new items the model does not know, or "".

    For each text column, the note counts the distinct words and the unknown ones among them. For each column of labels
    with unknown labels, it counts labels in the same way and shows one unknown label. The note begins with "; ",
    because it follows a count.
    """
    from svc.model.columns.text_column import TextColumn
    from svc.model.features import TokenColumn

    note = ""
    # Known items have learned vectors, so their words do not matter.
    new = [listed.features[position] for position in model.unknown(listed.ids).tolist()]
    encoder = None if model.features is None else model.features.item
    for column in () if encoder is None else encoder.encoders:
        if isinstance(column, TextColumn):
            words = {word for features in new for word in column.words(features.get(column.name))}
            n_unknown = len(column.unknown(words))
            note += (
                f"; of the {len(words)} words in column {column.name!r} of the new items it does not know {n_unknown}"
            )
        elif isinstance(column, TokenColumn):
            labels = sorted({label for features in new for label in column.split(features.get(column.name))})
            unknown = [label for label, row in zip(labels, column.tokens.indices(labels), strict=True) if row < 0]
            if unknown:
                note += (
                    f"; of the {len(labels)} labels in column {column.name!r} of the new items it does not know "
                    f"{len(unknown)}, such as {unknown[0][:40]!r}: these have no effect"
                )
    return note


def _verified_model(loaded: LoadedRecipe, settings: Settings) -> Model | SvcError:
    """Return the recipe's live model, or the error for which it cannot be verified, such as a missing file or key."""
    from svc.export.run import open_artifact

    uri = loaded.output_uri
    try:
        return open_artifact(uri, verifying_keys(settings, unsigned=False, artifact=uri), settings).model
    except SvcError as error:
        return error
