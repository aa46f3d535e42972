"""The recommender: the numbers of the API, with data frames in and out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import structlog

import svc
from svc import events, logs
from svc.errors import (
    ArtifactReadError,
    ConfigError,
    FeaturesNotSupported,
    SignatureMismatch,
    UnknownKid,
    UnknownSeedItems,
    UnknownUser,
    UsageError,
)
from svc.library.recommender import keys_text, signing_keys
from svc.settings import Settings
from tests.export.conftest import MODELS
from tests.serving.artifacts import SIGNING_KEYS, header, write_artifact


def test_a_recommender_has_sizes_ids_header_and_version(books: svc.Recommender) -> None:
    """Ids are in training order."""
    assert (books.n_users, books.n_items) == (700, 90)
    assert books.users()[1] == "ü 1"
    assert books.items()[1] == "i1"
    assert books.model_version.startswith("sha256:")
    assert "books" in repr(books)
    with pytest.raises(TypeError):
        books.header["best_class"] = "other"  # type: ignore[index]


def test_recommend_returns_the_best_unseen_items(books: svc.Recommender) -> None:
    """The best items come first. Excluded items are left out, and so is the user's own history unless requested."""
    found = books.recommend("ü 1", limit=12)
    assert list(found.columns) == ["item_id", "score"]
    assert len(found) == 12
    assert found["score"].is_monotonic_decreasing
    fewer = books.recommend("ü 1", limit=12, exclude_items=[found["item_id"][0]])
    assert fewer["item_id"].tolist()[:11] == found["item_id"].tolist()[1:]
    assert len(books.recommend("ü 1", limit=90, include_seen=True)) == 90
    with pytest.raises(UnknownUser):
        books.recommend("nobody")
    with pytest.raises(FeaturesNotSupported):
        books.recommend(user_features={"age": "9"})


@pytest.mark.parametrize("kind", [list, tuple, pd.Series, pd.Index, pd.Categorical, iter])
def test_many_users_get_the_recommendations_of_each_alone(books: svc.Recommender, kind: Any) -> None:
    """Users are in the given order, ranks start at 1, and bits agree, for any kind of list."""
    users = ["ü 5", "ü 1", "ü 699", "ü 5"]
    found = books.recommend_many(kind(users), limit=4)
    assert list(found.columns) == ["user_id", "rank", "item_id", "score"]
    alone = [books.recommend(user, limit=4) for user in users]
    expected = pd.concat([one.assign(user_id=user) for user, one in zip(users, alone, strict=True)], ignore_index=True)
    assert found["user_id"].tolist() == expected["user_id"].tolist()
    assert found["item_id"].tolist() == expected["item_id"].tolist()
    assert found["score"].to_numpy().tobytes() == expected["score"].to_numpy().tobytes()
    assert found["rank"].tolist() == [rank + 1 for one in alone for rank in range(len(one))]


def test_recommend_many_covers_all_users_by_default(books: svc.Recommender) -> None:
    """Without a list, it returns all training users in order. An empty list gives an empty frame."""
    found = books.recommend_many(limit=3)
    assert found["user_id"].drop_duplicates().tolist() == [user for user in books.users() if user != "ü 5"]
    assert books.recommend_many([]).empty
    assert list(books.recommend_many([]).columns) == ["user_id", "rank", "item_id", "score"]


def test_unknown_users_among_many_are_an_error_or_skipped(books: svc.Recommender) -> None:
    """The error names the first unknown user and a remedy. With `skip`, such users are left out."""
    with pytest.raises(UnknownUser, match=r"2 of 3 users.*'x'.*unknown='skip'"):
        books.recommend_many(["ü 1", "x", "y"])
    assert books.recommend_many(["x", "ü 1"], limit=1, unknown="skip")["user_id"].tolist() == ["ü 1"]


def test_recommend_users_has_the_scores_of_recommend(books: svc.Recommender) -> None:
    """Scores are those of `recommend`. Users who have the item are left out unless requested."""
    users = books.recommend_users("i1", limit=700)
    assert list(users.columns) == ["user_id", "score"]
    assert users["score"].is_monotonic_decreasing
    best = users.iloc[0]
    own = books.recommend(best["user_id"], limit=90).set_index("item_id")["score"]
    assert own["i1"] == best["score"]
    assert len(books.recommend_users("i1", limit=700, include_seen=True, min_history=0)) == 700
    named = books.recommend_users("i1", order="lift", include_users=pd.Series(["ü 1", "ü 2"]), min_history=0)  # type: ignore[arg-type]
    assert set(named["user_id"]) <= {"ü 1", "ü 2"}
    with pytest.raises(UnknownSeedItems):
        books.recommend_users("nothing")
    with pytest.raises(UsageError, match="ids are text"):
        books.recommend_users(7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give item_id or item_features"):
        books.recommend_users()
    with pytest.raises(UsageError, match="offset and limit"):
        books.recommend_users("i1", limit=1000, offset=1)


def test_related_items_leave_out_seeds(books: svc.Recommender) -> None:
    """Seeds never come back. `similar_items` is the answer for a single seed."""
    found = books.related(["i1", "i2"], limit=20)
    assert not {"i1", "i2"} & set(found["item_id"])
    pd.testing.assert_frame_equal(books.similar_items("i3", limit=5), books.related(["i3"], limit=5))
    with pytest.raises(UnknownSeedItems):
        books.similar_items("none")


@pytest.mark.parametrize("family", ["neighbours", "factors", "popularity"])
def test_reasons_add_up_to_the_score(tmp_path: Path, family: str) -> None:
    """Shares and the rest add up to 1 for users and for seeds. Items and scores are those of the recommendation.

    Only the factor model of this test explains other scores for a user: its user vectors are random, and an explanation
    computes the vector from the history.
    """
    write_artifact(tmp_path / "a.svc", MODELS[family]())
    shop = svc.load(tmp_path / "a.svc", keys=SIGNING_KEYS)
    user, seed = shop.users()[1], shop.items()[4]
    known_user = shop.recommend(user, limit=6)
    for found, plain in (
        (shop.explain(user, limit=6, reasons=2), known_user),
        (shop.explain(seed_items=[seed], limit=6), shop.related([seed], limit=6)),
    ):
        assert list(found.columns) == ["rank", "item_id", "score", "reason", "share", "in_spite_of"]
        each = found.groupby("rank")
        if family != "factors" or plain is not known_user:
            assert each["item_id"].first().tolist() == plain["item_id"].tolist()
            np.testing.assert_allclose(each["score"].first(), plain["score"])
        assert found["in_spite_of"].tolist() == (found["share"] < 0).tolist()
        totals = found[~found["in_spite_of"]].groupby("rank")["share"].sum()
        np.testing.assert_allclose(totals[each["score"].first() > 0], 1.0, atol=1e-9)
        assert (each["reason"].last() == "rest").all()
        known = {*shop.items(), "rest", "popular"}
        assert set(found["reason"]) <= known
    some: tuple[Any, ...] = (0, 11, "3", None)
    for reasons in some:
        with pytest.raises(UsageError, match=f"reasons: {reasons} is not within 1..10"):
            shop.explain(user, reasons=reasons)
    assert shop.explain(user, reasons=1)["reason"].notna().all()
    assert shop.explain(user, reasons=10)["reason"].notna().all()
    with pytest.raises(UsageError, match="not both"):
        shop.explain(user, seed_items=[seed])
    with pytest.raises(UnknownUser):
        shop.explain("nobody")


@pytest.mark.parametrize("limit", [0, 1001, -1])
def test_wrong_arguments_are_named(books: svc.Recommender, limit: int) -> None:
    """Bounds are those of the API, and a text in place of a list is refused."""
    for call in (books.recommend_many, lambda limit: books.recommend("ü 1", limit=limit)):
        with pytest.raises(UsageError, match="limit"):
            call(limit=limit)
    with pytest.raises(UsageError, match="list"):
        books.related("i1")
    with pytest.raises(UsageError, match="list"):
        books.recommend_many("ü 1")


def test_scores_are_float64_without_rounding(books: svc.Recommender) -> None:
    """Scores are those of the API."""
    assert books.recommend("ü 1")["score"].dtype == np.float64


def test_keys_come_in_three_forms(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are given as a text, as a mapping, or by the environment.

    The error for missing or invalid keys shows no key.
    """
    versions = {svc.load(artifact, keys=SIGNING_KEYS).model_version}
    versions.add(svc.load(str(artifact), keys={"k1": "11" * 32}).model_version)
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    versions.add(svc.load(artifact).model_version)
    assert len(versions) == 1
    monkeypatch.delenv("SVC_SIGNING_KEYS")
    for keys in (None, "", {}):
        with pytest.raises(ConfigError, match=r"no keys to verify with.*SVC_VERIFY_KEYS"):
            svc.load(artifact, keys=keys)
    with pytest.raises(ConfigError, match="keys: give text or a mapping from kid to key, not a bytes"):
        svc.load(artifact, keys=SIGNING_KEYS.encode())  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        svc.load(artifact, keys={"k1": "ab" * 31})
    assert "abab" not in caught.value.message


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda books: pickle.loads(pickle.dumps(books))])
def test_copies_give_the_same_answers(books: svc.Recommender, again: Callable[[Any], svc.Recommender]) -> None:
    """A recommender can be copied, and pickled for another process."""
    for ask in (lambda model: model.recommend("ü 1"), lambda model: model.related(["i1"])):
        pd.testing.assert_frame_equal(ask(again(books)), ask(books))


def test_artifacts_are_verified_as_by_a_server(artifact: Path) -> None:
    """Missing and changed artifacts, unknown keys and other signatures are refused."""
    with pytest.raises(ArtifactReadError):
        svc.load(artifact.parent / "none.svc", keys=SIGNING_KEYS)
    with pytest.raises(UnknownKid):
        svc.load(artifact, keys={"other": "11" * 32})
    with pytest.raises(SignatureMismatch):
        svc.load(artifact, keys={"k1": "22" * 32})
    whole = bytearray(artifact.read_bytes())
    whole[len(whole) // 2] ^= 1
    artifact.write_bytes(whole)
    with pytest.raises(SignatureMismatch):
        svc.load(artifact, keys=SIGNING_KEYS)


@pytest.mark.system
def test_a_program_keeps_its_own_logging(tmp_path: Path) -> None:
    """Loading neither prints nor touches handlers and warnings of the program. Records go to the logger `svc`."""
    import subprocess
    import sys

    path = tmp_path / "a.svc"
    write_artifact(path, MODELS["popularity"](), head={**header(), "irspack_version": None})
    script = (
        "import logging, warnings\n"
        "before = warnings.showwarning, list(logging.getLogger().handlers)\n"
        "records = []\n"
        "class Keep(logging.Handler):\n"
        "    def emit(self, record): records.append(record.getMessage())\n"
        "logging.getLogger('svc').addHandler(Keep())\n"
        f"import svc\nsvc.load({str(path)!r}, keys={SIGNING_KEYS!r})\n"
        "assert before == (warnings.showwarning, list(logging.getLogger().handlers))\n"
        "assert any('irspack_version_unknown' in record for record in records), records\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_records_go_to_the_logger_of_the_program(artifact: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records go to the program's own logger unless a command has set up logging."""
    structlog.reset_defaults()
    try:
        svc.load(artifact, keys=SIGNING_KEYS)
        logs.emit(events.PYTHON_WARNING, category="a", message="b")
    finally:
        logs.configure(Settings())
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("svc", "event='python_warning' category='a' message='b'")
    ]


KEY, OTHER = "11" * 32, "22" * 32


def test_text_mapping_and_environment_give_the_same_keys() -> None:
    """In each form the first key signs."""
    for given in (f"a:{KEY},b:{OTHER}", {"a": KEY, "b": OTHER}):
        keys = signing_keys(given, Settings())
        assert keys.active == ("a", bytes.fromhex(KEY))
        assert keys.entries["b"] == bytes.fromhex(OTHER)
    assert keys_text(None, Settings(signing_keys=f"a:{KEY}")) == f"a:{KEY}"


@pytest.mark.parametrize("given", [None, "", "  ", {}])
def test_the_error_for_missing_keys_says_how_to_give_them(given: object) -> None:
    """The error comes before the first artifact is read."""
    with pytest.raises(ConfigError, match="SVC_SIGNING_KEYS"):
        keys_text(given, Settings())  # type: ignore[arg-type]


def test_the_error_for_a_broken_key_does_not_repeat_it() -> None:
    """Messages may reach people who must not know the key."""
    with pytest.raises(ConfigError) as caught:
        signing_keys({"a": "secret" * 9}, Settings())
    assert "secret" not in caught.value.message
    assert caught.value.message.startswith("keys: the key of entry 1 ")
