"""The tables beside the interactions in a recipe: features of users and items, metadata of items."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from svc.recipe.serving_schema import FilterField, Kind
from svc.recipe.source_options import Block, Name, Positive, SourceSpec, Whole, unique_names

RESERVED_FIELDS = frozenset({"item_id", "score"})  # keys that every recommended item already has


FeatureKind = Literal[Kind, "text", "vector"]
MAX_WORDS = 32_768
MAX_DIMENSIONS = 4096
_FIELDS_OF_KINDS = {
    "delimiter": ("multi_label", "vector"),
    "min_frequency": ("categorical", "multi_label", "numerical"),
    "max_words": ("text",),
    "min_items": ("text",),
    "analyzer": ("text",),
    "dimensions": ("vector",),
}
"""The kinds of columns that accept each field. Other older kinds accept the first two without effect."""


class FeatureColumn(Block):
    name: Name
    kind: FeatureKind = Field(description="May be spelled `encoding`.")
    delimiter: Annotated[str, Field(min_length=1, max_length=8)] = Field(
        default="|", description="Between labels of multi_label, and between the numbers of a vector that is a text."
    )
    min_frequency: Positive = Field(default=1, description="Rarer values are left out of the vocabulary.")
    max_words: Annotated[Whole, Field(ge=1, le=MAX_WORDS)] = Field(
        default=8192, description="Of a text: the most words, those that most items have."
    )
    min_items: Positive = Field(default=2, description="Of a text: words of fewer items are left out.")
    analyzer: Literal["word", "char"] = Field(
        default="word",
        description="Of a text: word takes runs of letters and digits, char runs of 3 to 5 characters, for languages "
        "without blanks.",
    )
    dimensions: Annotated[Whole, Field(ge=1, le=MAX_DIMENSIONS)] | None = Field(
        default=None, description="Of a vector: how many numbers it has."
    )

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> Self:
        if self.kind == "vector" and self.dimensions is None:
            raise ValueError("kind vector needs `dimensions`, how many numbers each vector has")
        for field in ("max_words", "min_items", "analyzer", "dimensions"):
            self._refuse(field, _FIELDS_OF_KINDS[field])
        if self.kind in ("text", "vector"):
            for field in ("delimiter", "min_frequency"):
                self._refuse(field, _FIELDS_OF_KINDS[field])
        return self

    def _refuse(self, field: str, kinds: tuple[str, ...]) -> None:
        if field in self.model_fields_set and self.kind not in kinds:
            instead = "; a text has min_items" if (field, self.kind) == ("min_frequency", "text") else ""
            raise ValueError(f"{field} is for kind {' and '.join(kinds)}, not for {self.kind}{instead}")


class FeatureSide(Block):
    """The feature table of one side, users or items."""

    source: SourceSpec
    id_column: Name
    columns: Annotated[tuple[FeatureColumn, ...], Field(min_length=1)]

    @field_validator("columns")
    @classmethod
    def _named_once(cls, columns: tuple[FeatureColumn, ...]) -> tuple[FeatureColumn, ...]:
        unique_names(tuple(column.name for column in columns))
        return columns

    @model_validator(mode="after")
    def _ids_are_no_feature(self) -> Self:
        if self.id_column in [column.name for column in self.columns]:
            raise ValueError(
                f"columns names {self.id_column!r}, which is the id_column: ids tell nothing of new users and items"
            )
        return self


class Features(Block):
    item: FeatureSide | None = None
    user: FeatureSide | None = None

    @model_validator(mode="after")
    def _some_side(self) -> Self:
        if self.item is None and self.user is None:
            raise ValueError("needs `item`, `user` or both; leave the block out for a recipe without features")
        return self


class ItemMetadata(Block):
    """Fields of each recommended item in an answer, and fields that requests may filter on."""

    source: SourceSpec
    id_column: Name
    fields: Annotated[tuple[Name, ...], AfterValidator(unique_names)] = Field(
        default=(), description="The only columns that answers carry; may be empty when there are filter_fields."
    )
    filter_fields: tuple[FilterField, ...] = Field(
        default=(), description="Columns that may be filtered on; answered only when they are also in `fields`."
    )
    on_field_missing: Literal["error", "null"] = "error"

    @field_validator("fields")
    @classmethod
    def _not_reserved(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in RESERVED_FIELDS:
                raise ValueError(f"names {name!r}, which every answer already has; rename the column in the table")
        return names

    @field_validator("filter_fields")
    @classmethod
    def _filtered_once(cls, fields: tuple[FilterField, ...]) -> tuple[FilterField, ...]:
        unique_names(tuple(field.name for field in fields))
        return fields

    @model_validator(mode="after")
    def _some_field(self) -> Self:
        if not self.fields and not self.filter_fields:
            raise ValueError("needs `fields`, `filter_fields` or both")
        return self

    @property
    def filter_kinds(self) -> dict[str, str]:
        """Return the kind of each filter field by its name."""
        return {field.name: field.kind for field in self.filter_fields}
