"""Loading of a model from an artifact.

The steps are: read the bytes up to the size limit, parse the layout, verify the signature, compare the digest with the
name of a version's file, check expiry and serial number, check versions, decode, compute derived arrays, read the item
metadata, rehearse answers, store the serial number. Header and payload are not used before their signature is verified,
except the key id.

A *rehearsal* computes and encodes answers for a few users, so that a model that cannot answer is never served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from svc import events, logs
from svc.artifact.keys import SigningKeys, is_development
from svc.artifact.layout import Parsed, kid_of
from svc.artifact.replay import ReplayGuard
from svc.artifact.store import Blob, Store, locate_error, verify_blob
from svc.asking.item_tables import give_memory_back, load_metadata
from svc.asking.offer import Offer
from svc.errors import ArtifactError, RehearsalFailed
from svc.model.load_model import load_model, rehearse, require_known_users
from svc.model.model import Model
from svc.names import ARM_MARK
from svc.processes import SealedMemory
from svc.recipe.load import LoadedRecipe
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.threads import lower_priority
from svc.settings import Settings

UNKNOWN_KID = "<unknown>"


def rehearse_answers(recipe: LoadedRecipe, model: Model, fragments: ItemFragments, live: Model | None) -> None:
    """Raise RehearsalFailed if `model` cannot answer, or knows too few of the users of `live`.

    `live` is the model that is served now, or None. Its users count only if the recipe declares `serving.rehearsal`.
    Raises MemoryError as it is. Blocks, so call it from a thread.
    """
    rehearsal = recipe.recipe.serving.rehearsal
    if live is not None and rehearsal is not None:
        require_known_users(model.user_ids, live.user_ids, rehearsal.min_known_users)
    for ranking in rehearse(model):
        try:
            fragments.items(ranking, with_metadata=True)
        # No fault of the model: as an unexpected error the load is tried again later.
        except MemoryError:
            raise
        except Exception as error:
            shown = f"{type(error).__name__}: {error!s:.100}"
            raise RehearsalFailed(f"rehearsal: no answer can be written: {shown}") from error


@dataclass(frozen=True, eq=False, kw_only=True)
class Loaded(Offer):
    """A loaded and rehearsed model with its encoded items, which can be served. It has neither rules nor lists."""

    fragments: ItemFragments
    """Encoded items of the model, followed by the new items."""
    header: Mapping[str, Any]
    """Header of the artifact."""
    model_version: str
    """`sha256:<hex digest of the artifact file>`."""
    kid: str
    """Id of the key that has signed the artifact."""
    seconds: float = 0.0
    """Duration of the load."""
    few_items: Mapping[str, int] | None = None
    """Both counts if fewer than half of the items have metadata, else None."""
    package: Any = None
    """The `workers.package.Package` in which workers get the model, or None without workers."""

    @property
    def sha256(self) -> str:
        """Digest of the artifact file, in hexadecimal digits."""
        return self.model_version.removeprefix("sha256:")


@dataclass(slots=True)
class Loader:
    """A loader of models. Several threads may call it at once."""

    settings: Settings
    keys: SigningKeys
    """Keys that verify artifacts. They may be replaced at any time. Later loads use the new keys."""
    variables: Mapping[str, str]
    """Variables that recipes may use."""
    guard: ReplayGuard = field(default_factory=ReplayGuard)
    """Refuses expired artifacts, and with SVC_STATE_DIR also artifacts that are older than one served before."""
    pack: Callable[[Loaded, Blob], Loaded] | None = None
    """Moves a model to memory that workers can map, and returns it with its package. None without workers."""

    def load(
        self, recipe: LoadedRecipe, store: Store, *, known_sha256: str | None = None, live: Model | None = None
    ) -> Loaded | None:
        """Load the model of the artifact in `store`. Returns None if the artifact has the digest `known_sha256`.

        `live` is the model that will be replaced, or None. Blocks, so call it from a thread. Raises an ArtifactError,
        which has the artifact's key id in the field "kid" if the bytes could be read, or an unexpected error.
        """
        lower_priority()
        began = time.perf_counter()
        blob = store.read(self.settings.max_artifact_bytes)
        # A marker may change without the bytes, such as the time of a file by `touch`.
        if blob.sha256 == known_sha256:
            return None
        try:
            if self.pack is not None:  # sealed before the signature is verified, so no process can change it afterwards
                blob = replace(blob, view=memoryview(SealedMemory.take(blob.view)))
            parsed = verify_blob(blob, self.keys, self.settings)
            self.guard.check(recipe.recipe.name, parsed, blob, store, self.keys)
            loaded = self._open(recipe, parsed, f"sha256:{blob.sha256}")
            rehearse_answers(recipe, loaded.model, loaded.fragments, live)
            # Decoding, the table of metadata and the rehearsal have freed memory, which glibc would keep.
            give_memory_back()
            if self.pack is not None:
                loaded = self.pack(loaded, blob)
            # Last, because a model that is not served must not make older ones count as replayed.
            self.guard.record_serial(recipe.recipe.name, parsed)
        except ArtifactError as error:
            if isinstance(error, RehearsalFailed):
                logs.emit(
                    events.ARTIFACT_REHEARSAL_FAILED, name=recipe.recipe.name, kid=parsed.kid, reason=error.message
                )
            shown = locate_error(error, blob.resolved)
            shown.fields["kid"] = _kid(recipe.recipe.name, blob)
            raise shown from error
        return replace(loaded, seconds=time.perf_counter() - began)

    def _open(self, recipe: LoadedRecipe, parsed: Parsed, model_version: str) -> Loaded:
        name, header = recipe.recipe.name, parsed.header
        if is_development(parsed.kid, self.keys):
            logs.emit(events.INITIAL_ARTIFACT_HMAC_SKIPPED_DEV, name=name, kid=parsed.kid)
        model = load_model(header, parsed.payload, name=name, allow_skew=self.settings.allow_version_skew)
        if recipe.recipe.serving.users:
            model.serve_users()
        tables = load_metadata(recipe, self.settings, model.item_ids, self.variables)
        if ARM_MARK not in name:  # an arm may have the artifact of any recipe
            _compare_recipes(recipe, header)
        return Loaded(
            model=model,
            fragments=ItemFragments.build(model.item_ids, tables.metadata),
            header=header,
            model_version=model_version,
            kid=parsed.kid,
            filters=tables.filters,
            few_items=tables.few,
        )


def _kid(name: str, blob: Blob) -> str:
    """Return the key id in an artifact whose signature may be invalid.

    Logs an unreadable id, and returns UNKNOWN_KID instead.
    """
    try:
        return kid_of(blob.view)
    except ArtifactError as error:
        logs.emit(events.KID_EXTRACTION_FAILED, name=name, error=error.message)
        return UNKNOWN_KID


def _compare_recipes(recipe: LoadedRecipe, header: Mapping[str, Any]) -> None:
    """Log if the model was trained with another recipe or another version of the recipe.

    Such an artifact has a valid signature if the same key signs the artifacts of several recipes.
    """
    trained_for = header.get("recipe_name")
    if trained_for is not None and trained_for != recipe.recipe.name:
        logs.emit(events.ARTIFACT_OF_ANOTHER_RECIPE, name=recipe.recipe.name, artifact_recipe=str(trained_for)[:64])
    trained_with = header.get("recipe_hash")
    if trained_with is not None and trained_with != recipe.recipe_hash:
        logs.emit(
            events.ARTIFACT_RECIPE_HASH_MISMATCH,
            name=recipe.recipe.name,
            artifact_recipe_hash=trained_with,
            current_recipe_hash=recipe.recipe_hash,
        )
