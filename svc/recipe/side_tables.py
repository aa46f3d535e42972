"""What a recipe says about the tables beside the interactions: features of users and items, metadata of items."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from svc.recipe.serving_schema import FilterField, Kind
from svc.recipe.source_options import Block, Name, Positive, SourceSpec, unique_names

RESERVED_FIELDS = frozenset({"item_id", "score"})  # keys that every recommended item already has


class FeatureColumn(Block):
    name: Name
    kind: Kind = Field(description="May be spelled `encoding`.")
    delimiter: Annotated[str, Field(min_length=1, max_length=8)] = Field(
        default="|", description="Between labels of multi_label."
    )
    min_frequency: Positive = Field(default=1, description="Rarer values are left out of the vocabulary.")


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


class Features(Block):
    item: FeatureSide | None = None
    user: FeatureSide | None = None

    @model_validator(mode="after")
    def _some_side(self) -> Self:
        if self.item is None and self.user is None:
            raise ValueError("needs `item`, `user` or both; leave the block out for a recipe without features")
        return self


class ItemMetadata(Block):
    """Fields that join each recommended item in an answer, and fields that requests may filter on."""

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
        """Kind of each filter field by its name."""
        return {field.name: field.kind for field in self.filter_fields}
