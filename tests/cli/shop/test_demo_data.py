"""The demo's shop looks like a shop."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from svc.cli.shop import demo_data
from svc.cli.shop.demo_data import Shop, make_shop, write_shop


@pytest.fixture(scope="module")
def shop() -> Shop:
    return make_shop()


def test_it_has_the_size_of_a_small_shop(shop: Shop) -> None:
    """Thousands of readers, a thousand books, tens of thousands of purchases within two years."""
    assert (len(shop.readers), len(shop.books)) == (4000, 1000)
    assert 50_000 < len(shop.purchases) < 200_000
    times = shop.purchases[:, 2]
    assert times.min() >= demo_data.FIRST_SALE_S
    assert times.max() < demo_data.LAST_SALE_S
    assert np.all(np.diff(times) >= 0)


def test_popularity_has_a_long_tail(shop: Shop) -> None:
    """A tenth of the books makes more than a third of the sales, and no book is bought by everybody."""
    counts = np.sort(np.bincount(shop.purchases[:, 1], minlength=1000))[::-1]
    assert counts[:100].sum() > counts.sum() / 3
    assert counts[0] < 2000


def test_taste_can_be_learned(shop: Shop) -> None:
    """Two purchases of one reader share a genre much more often than two of any readers."""
    genres = np.array(
        [[genre in str(book["categories"]).split("|") for genre in demo_data.GENRES] for book in shop.books]
    )
    by_reader = shop.purchases[np.argsort(shop.purchases[:, 0], kind="stable")]
    first, second = by_reader[:-1], by_reader[1:]
    same = first[:, 0] == second[:, 0]
    shared = (genres[first[:, 1]] & genres[second[:, 1]]).any(axis=1)[same].mean()
    strangers = (genres[shop.purchases[:-1, 1]] & genres[shop.purchases[1:, 1]]).any(axis=1).mean()
    assert shared > 1.5 * strangers


def test_nobody_buys_a_book_twice(shop: Shop) -> None:
    """Purchases are distinct pairs."""
    pairs = shop.purchases[:, 0] * 1000 + shop.purchases[:, 1]
    assert len(np.unique(pairs)) == len(pairs)


def test_titles_are_distinct(shop: Shop) -> None:
    """An answer can be read by its titles."""
    assert len({book["title"] for book in shop.books}) == len(shop.books)


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    """Everybody who runs the demo sees the same shop."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_shop(make_shop(), tmp_path / name)
    for file in ("books.csv", "readers.csv", "purchases.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    with (tmp_path / "a" / "purchases.csv").open() as rows:
        assert next(csv.reader(rows)) == ["user_id", "item_id", "ts"]
