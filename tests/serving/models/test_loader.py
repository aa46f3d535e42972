"""Loading of signed artifacts: the model, and the error for each kind of damage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from svc.artifact.keys import development_keys, parse_signing_keys
from svc.artifact.store import open_store
from svc.errors import ArtifactError, UsersNotServed
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import Serving
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.loader import Loaded, Loader, rehearse_answers
from svc.settings import Settings
from tests import planned
from tests.families import EVERY_FAMILY, family
from tests.model.test_model import made
from tests.serving.artifacts import OTHER_KEYS, SIGNING_KEYS, header, popularity_model, recipe, write_artifact

SETTINGS = Settings()


def load(
    folder: Path,
    *,
    keys: str = SIGNING_KEYS,
    settings: Settings = SETTINGS,
    known: str | None = None,
    live: Model | None = None,
    **more: Any,
) -> Loaded | None:
    loader = Loader(settings, parse_signing_keys(keys), {})
    store = open_store(str(folder / "a.svc"), settings)
    return loader.load(recipe(folder, **more), store, known_sha256=known, live=live)


def test_a_valid_artifact_becomes_a_model_that_answers(tmp_path: Path, lowered: list[int]) -> None:
    """The result has header, kid and sha256. Its prebuilt bytes encode the items.

    A load lowers the priority of its thread.
    """
    sha256 = write_artifact(tmp_path / "a.svc", popularity_model())
    loaded = load(tmp_path)
    assert len(lowered) == 1
    assert loaded is not None
    assert (loaded.sha256, loaded.kid, loaded.header["best_class"]) == (sha256, "k1", "TopPopRecommender")
    prepared = planned.recommend(loaded.model, user_id="u3", user_features=None, limit=1)
    ranking = loaded.model.rank([prepared.query])[0]
    assert b'"item_id":"i0"' in loaded.fragments.items(ranking, with_metadata=True)


def test_users_are_summarized_only_if_the_recipe_permits_queries_for_users(tmp_path: Path) -> None:
    """Without the permission, the summary costs neither time nor memory."""
    write_artifact(tmp_path / "a.svc", made("svd"))
    plain, asked = load(tmp_path), load(tmp_path, serving={"users": True})
    assert plain is not None and asked is not None
    with pytest.raises(UsersNotServed):
        planned.users(plain.model, item_id="i1", item_features=None, limit=1)
    (ranking,) = asked.model.rank([planned.users(asked.model, item_id="i1", item_features=None, limit=3).query])
    assert len(ranking.items) == 3


def test_bytes_of_the_served_artifact_are_not_parsed(tmp_path: Path) -> None:
    """An artifact with the sha256 of the served model gives no new model."""
    sha256 = write_artifact(tmp_path / "a.svc", popularity_model())
    assert load(tmp_path, known=sha256) is None


def cut(data: bytes) -> bytes:
    return data[:-1]


def cut_to_nothing(_: bytes) -> bytes:
    return b"SVCM"


def other_magic(data: bytes) -> bytes:
    return b"NOTMODEL" + data[8:]


def newer_format(data: bytes) -> bytes:
    return data[:8] + b"\x00\x03" + data[10:]


def flipped(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


@pytest.mark.parametrize(
    ("damage", "stage", "text", "kid"),
    [
        (other_magic, "parse", "magic bytes mismatch", "k1"),
        (newer_format, "parse", "unsupported format version", "k1"),
        (flipped, "hmac", "signature mismatch", "k1"),
        (cut, "parse", "magic bytes mismatch", "k1"),
        (cut_to_nothing, "parse", "magic bytes mismatch", "<unknown>"),
    ],
)
def test_the_error_of_a_damaged_artifact_has_stage_and_kid(
    tmp_path: Path, damage: Callable[[bytes], bytes], stage: str, text: str, kid: str
) -> None:
    """The error's text is the documented one."""
    file = tmp_path / "a.svc"
    write_artifact(file, popularity_model())
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ArtifactError) as caught:
        load(tmp_path)
    assert caught.value.stage == stage
    assert caught.value.message.startswith(text)
    assert caught.value.fields["kid"] == kid


def test_an_unknown_kid_is_named(tmp_path: Path) -> None:
    """The error shows which key is missing."""
    write_artifact(tmp_path / "a.svc", popularity_model(), keys=OTHER_KEYS)
    with pytest.raises(ArtifactError) as caught:
        load(tmp_path)
    assert (
        caught.value.message
        == f"unknown kid: k2; the kids here are k1: add k2:<64 hex characters> ({tmp_path / 'a.svc'})"
    )
    assert caught.value.stage == "hmac"


def test_a_missing_file_and_caps_fail_while_reading(tmp_path: Path) -> None:
    """Both errors have their own reason."""
    with pytest.raises(ArtifactError) as missing:
        load(tmp_path)
    assert (missing.value.reason, missing.value.fields) == ("read", {})
    write_artifact(tmp_path / "a.svc", popularity_model())
    with pytest.raises(ArtifactError) as large:
        load(tmp_path, settings=replace(SETTINGS, max_artifact_bytes=100))
    assert large.value.reason == "size_cap"
    assert large.value.message.startswith("payload exceeds max bytes")


def test_version_skew_refuses_before_the_payload_is_opened(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    """An untested version of irspack is refused. A setting turns the error into a warning."""
    head = header(irspack_version="0.4.1", best_class="IALSRecommender")
    write_artifact(tmp_path / "a.svc", popularity_model(), head=head)
    with pytest.raises(ArtifactError) as caught:
        load(tmp_path)
    assert caught.value.reason == "version_skew"
    assert load(tmp_path, settings=replace(SETTINGS, allow_version_skew=True)) is not None
    assert [record["event"] for record in records] == ["irspack_version_skew_allowed"]


def test_another_recipe_hash_is_a_warning(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    """The model is served. An artifact without a hash causes no warning."""
    write_artifact(tmp_path / "a.svc", popularity_model(), head=header(recipe_hash="0" * 12))
    assert load(tmp_path) is not None
    assert [(one["event"], one["artifact_recipe_hash"]) for one in records] == [
        ("artifact_recipe_hash_mismatch", "0" * 12)
    ]
    assert len(records[0]["current_recipe_hash"]) == 12


def test_an_artifact_of_another_recipe_is_a_warning(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    """The model is served, because recipes may share a model or be renamed."""
    write_artifact(tmp_path / "a.svc", popularity_model(), head=header(recipe_name="a"))
    assert load(tmp_path) is not None
    assert records == []
    write_artifact(tmp_path / "a.svc", popularity_model(), head=header(recipe_name="books"))
    assert load(tmp_path) is not None
    assert [(one["event"], one["name"], one["artifact_recipe"]) for one in records] == [
        ("artifact_of_another_recipe", "a", "books")
    ]


def test_a_signed_version_in_the_file_of_another_version_is_refused(tmp_path: Path) -> None:
    """The signature of the file is valid, but the pointer names another version."""
    files = {}
    for best in (0, 1):
        write_artifact(tmp_path / "a.svc", popularity_model(best))
        content = (tmp_path / "a.svc").read_bytes()
        files[hashlib.sha256(content).hexdigest()[:8]] = content
    one, other = files
    (tmp_path / "a.svc").write_text(f"a.{one}.svc\n")
    (tmp_path / f"a.{one}.svc").write_bytes(files[one])
    assert load(tmp_path) is not None
    (tmp_path / f"a.{one}.svc").write_bytes(files[other])
    with pytest.raises(ArtifactError, match=f"begins with {other}, the name says {one}") as refused:
        load(tmp_path)
    assert refused.value.reason == "misplaced"


def test_each_load_with_the_development_key_is_logged(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    """Artifacts with this signature load only if the development key is configured."""
    kid, key = development_keys().active
    from svc.artifact import layout
    from svc.model.codec import encode

    with (tmp_path / "a.svc").open("wb") as out:
        layout.write(out, kid=kid, key=key, header=header(), payload=encode(popularity_model()))
    with pytest.raises(ArtifactError):
        load(tmp_path)
    loader = Loader(SETTINGS, parse_signing_keys(SIGNING_KEYS).with_development(), {})
    assert loader.load(recipe(tmp_path), open_store(str(tmp_path / "a.svc"), SETTINGS)) is not None
    assert records[-1]["event"] == "initial_artifact_hmac_skipped_dev"


@pytest.mark.parametrize("family", ["ials", "svd", "bpr"])
def test_a_model_of_nan_is_refused_with_its_reason(tmp_path: Path, family: str, records: list[dict[str, Any]]) -> None:
    """The event has kid and reason, whether NaN appears while the model is opened or when it answers."""
    model: Any = made(family)
    model.scorer.users = np.full_like(model.scorer.users, np.nan)
    write_artifact(tmp_path / "a.svc", model)
    with pytest.raises(ArtifactError) as caught:
        load(tmp_path)
    assert (caught.value.reason, caught.value.stage) == ("rehearsal", "deserialize")
    (record,) = [record for record in records if record["event"] == "artifact_rehearsal_failed"]
    assert (record["name"], record["kid"]) == ("a", "k1")
    assert caught.value.message.startswith(record["reason"])
    assert record["reason"].startswith("rehearsal: ")


def test_ids_that_became_decimals_are_refused_if_the_recipe_bounds_known_users(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    """Blank cells turned the id 1 into 1.0, so the new model would know none of the users of the served one."""
    live, fresh = popularity_model(0), popularity_model(1)
    live.user_ids = IdTable.from_ids(["1", "2", "3", "4"])
    fresh.user_ids = IdTable.from_ids(["1.0", "2.0", "3.0", "4"])
    write_artifact(tmp_path / "a.svc", fresh)
    half = {"rehearsal": {"min_known_users": 0.5}}
    assert load(tmp_path, live=live) is not None
    assert load(tmp_path, serving=half) is not None, "at the start there is nothing to compare with"
    assert load(tmp_path, live=live, serving={"rehearsal": {"min_known_users": 0.25}}) is not None
    with pytest.raises(ArtifactError, match="1 of the live model's 4 users are known to the new model"):
        load(tmp_path, live=live, serving=half)
    assert [record["event"] for record in records] == ["artifact_rehearsal_failed"]


def test_a_model_whose_answers_cannot_be_encoded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is served, a rehearsal encodes answers as requests do."""
    write_artifact(tmp_path / "a.svc", popularity_model())

    def broken(*_: object, **__: object) -> bytes:
        raise ValueError("no such column")

    monkeypatch.setattr("svc.serving.models.fragments.ItemFragments.items", broken)
    with pytest.raises(ArtifactError, match="no answer can be written: ValueError: no such column"):
        load(tmp_path)


def recipe_with(serving: dict[str, Any] | None = None) -> LoadedRecipe:
    block = Serving.model_validate(serving or {})
    return cast(LoadedRecipe, SimpleNamespace(recipe=SimpleNamespace(serving=block)))


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_a_valid_model_passes_its_rehearsal(name: str) -> None:
    """Models of every family pass the check before they are served, also if they replace no model."""
    model = family(name)
    rehearse_answers(recipe_with(), model, ItemFragments.build(model.item_ids, None), None)
