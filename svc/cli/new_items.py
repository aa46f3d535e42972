"""A recipe's list of new items in commands. `svc validate` counts the items, `svc recommend` recommends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from svc.cli.common import verifying_keys
from svc.errors import DataSourceError, FeaturesNotSupported, FeatureValueUnusable, SvcError
from svc.training.validate import Check

if TYPE_CHECKING:
    from svc.model.model import Model
    from svc.recipe.load import LoadedRecipe
    from svc.serving.models.item_lists import NewItemList, PlacedItems
    from svc.settings import Settings

NAME = "serving.new_items"


def check_new_items(loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str]) -> Check | None:
    """Count the items of the list that are new to the model, and those that it knows.

    Returns None if the recipe has no list.
    """
    from svc.serving.models.item_lists import declared_in, place, read_new_items

    declared = declared_in(loaded)
    if declared is None:
        return None
    model = _model(loaded, settings)
    n_items = 0 if model is None else model.n_items
    try:
        listed = read_new_items(loaded, settings, variables, n_items)
        if model is None:
            return Check(NAME, True, f"{len(listed.ids)} items; there is no model yet that may know some of them")
        n_new = len(place(listed, model, declared).items)
        words = _unknown_words(listed, model)
    except (FeatureValueUnusable, FeaturesNotSupported) as error:
        code, exit_code = DataSourceError.code, DataSourceError.exit_code
        return Check(NAME, False, f"the model cannot use the list: {error.message}", exit_code, code)
    except SvcError as error:
        return Check(NAME, False, error.message, DataSourceError.exit_code, DataSourceError.code)
    n_known = len(listed.ids) - n_new
    return Check(NAME, True, f"{len(listed.ids)} items: {n_new} are new, {n_known} the model knows{words}")


def _unknown_words(listed: NewItemList, model: Model) -> str:
    """Return a note on the words of each text column and the labels of each other column of the new items.

    It counts the distinct words or labels, and how many of them the model does not know.
    """
    from svc.model.columns.text_column import TextColumn
    from svc.model.features import TokenColumn

    note = ""
    new = [listed.features[position] for position in model.unknown(listed.ids).tolist()]
    encoder = None if model.features is None else model.features.item
    for column in () if encoder is None else encoder.encoders:
        if isinstance(column, TextColumn):
            words = {word for features in new for word in column.words(features.get(column.name))}
            n_unknown = len(column.unknown(words))
            note += f"; it does not know {n_unknown} of the {len(words)} words in their {column.name!r}"
        elif isinstance(column, TokenColumn):
            labels = sorted({label for features in new for label in column.split(features.get(column.name))})
            unknown = [label for label, row in zip(labels, column.tokens.indices(labels), strict=True) if row < 0]
            if unknown:
                note += (
                    f"; it has never seen {len(unknown)} of the {len(labels)} labels in their {column.name!r}, such as "
                    f"{unknown[0][:40]!r}, which say nothing of an item"
                )
    return note


def new_items(
    loaded: LoadedRecipe, model: Model, settings: Settings, variables: Mapping[str, str]
) -> PlacedItems | None:
    """Return the new items that the recipe's server would recommend at this moment.

    Returns None if the recipe has no list. Raises DataSourceError and MetadataError: an export has no earlier list to
    use instead.
    """
    from svc.serving.models.item_lists import declared_in, place, read_new_items

    declared = declared_in(loaded)
    if declared is None:
        return None
    listed = read_new_items(loaded, settings, variables, model.n_items)
    try:
        return place(listed, model, declared)
    except (FeatureValueUnusable, FeaturesNotSupported) as error:
        raise DataSourceError(f"the model cannot use the list of new items: {error.message}") from None


def _model(loaded: LoadedRecipe, settings: Settings) -> Model | None:
    """Return the model of the recipe, or None if no model can be verified."""
    from svc.export.run import open_artifact

    try:
        return open_artifact(loaded.output_uri, verifying_keys(settings, unsigned=False), settings).model
    except SvcError:
        return None
