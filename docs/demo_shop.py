"""Draws the demo's bookshop, `svc/cli/demo_files/data`: `python docs/demo_shop.py`.

Readers have tastes, books have genres and authors, and purchases span two years.

    U readers, B books, G genres
    taste   (U, G)  share of each genre in a reader's interest; depends on the age band, so features carry signal
    appeal  (U, B)  log of how much a reader wants a book: popularity + genre taste + authors the reader follows

Purchases are drawn without replacement from softmax(appeal), so popularity is long-tailed and taste can be
learned. Everything follows from the seed and numpy's version.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

N_READERS, N_BOOKS, N_AUTHORS = 4000, 1000, 160
N_VISITORS, HOUR_S = 300, 3600
MEAN_PURCHASES = 22
FIRST_SALE_S, LAST_SALE_S = 1_704_067_200, 1_767_225_600  # 2024-01-01 to 2026-01-01, UTC

AGE_BANDS = ("under 18", "18-29", "30-44", "45-64", "65+")
REGIONS = ("north", "east", "south", "west", "islands")
WORDS = {
    "Crime": ("Harbour Witness", "Silent Alibi", "Cold Ledger", "Last Informant", "Borrowed Knife", "Locked Attic"),
    "Fantasy": ("Ember Crown", "Raven Oath", "Glass Dragon", "Hollow Throne", "Moonlit Forge", "Winter Rune"),
    "Romance": ("Summer Letters", "Second Waltz", "Paper Roses", "Midnight Promise", "Orchard Kiss", "Lost Bouquet"),
    "Science Fiction": ("Orbital Dawn", "Quiet Machine", "Titan Signal", "Ninth Colony", "Static Sea", "Solar Drift"),
    "History": ("Fallen Republic", "Salt Road", "Iron Parliament", "Forgotten Fleet", "Silk Century", "River Empire"),
    "Biography": (
        "Painter's Life",
        "Stubborn Inventor",
        "Queen's Doctor",
        "Young Composer",
        "Long Exile",
        "First Pilot",
    ),
    "Travel": ("Slow Train", "Desert Notebook", "Island Ferry", "Mountain Border", "Night Market", "Coastal Walk"),
    "Cooking": ("Clay Oven", "Green Kitchen", "Sunday Broth", "Baker's Morning", "Spice Table", "Winter Pickles"),
    "Children": ("Brave Hedgehog", "Cloud Bus", "Tiny Pirate", "Sleepy Bear", "Giant Turnip", "Moon Kitten"),
    "Poetry": ("Unsent Hours", "Blue Thresholds", "Field of Breath", "Small Weather", "Ash and Honey", "Tide Songs"),
    "Business": ("Lean Harvest", "Honest Pitch", "Patient Capital", "Quiet Leader", "Open Ledger", "Brave Budget"),
    "Nature": ("Hidden Meadow", "Owl Calendar", "Moss Garden", "Last Glacier", "Wild Hedgerow", "Bee Country"),
}
GENRES = tuple(WORDS)
PATTERNS = ("The {}", "A {}", "Return to the {}", "Beyond the {}", "Under the {}", "Tales of the {}", "Before the {}")
FIRST_NAMES = (
    "Ada",
    "Bruno",
    "Clara",
    "Davi",
    "Elin",
    "Femi",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kaya",
    "Luca",
    "Mira",
)
LAST_NAMES = (
    "Abel",
    "Berg",
    "Costa",
    "Dahl",
    "Egger",
    "Frey",
    "Gall",
    "Holm",
    "Ito",
    "Jansen",
    "Keller",
    "Lind",
    "Moreau",
)


NEW_BOOKS: tuple[dict[str, object], ...] = (
    {
        "item_id": "b1001",
        "title": "The Vanished Witness",
        "author": "Ada Abel",
        "categories": "Crime",
        "price": 14.9,
        "year": 2026,
    },
    {
        "item_id": "b1002",
        "title": "Tales of the Amber Road",
        "author": "Kaya Lind",
        "categories": "History|Travel",
        "price": 22.5,
        "year": 2026,
    },
)
"""They have just come in: nobody has bought them yet."""


@dataclass(frozen=True, slots=True)
class Shop:
    """`books` and `readers` are rows of the tables; `purchases` rows of (reader, book, UNIX seconds), by time.

    `visits` are rows of (reader, book, UNIX seconds, kind) of the first readers: views, carts and purchases.
    """

    books: list[dict[str, object]]
    readers: list[dict[str, object]]
    purchases: NDArray[np.int64]
    visits: list[tuple[int, int, int, str]]


def make_shop(seed: int = 7) -> Shop:
    """The whole data set, the same for the same seed."""
    rng = np.random.default_rng(seed)
    book_genres, books, author_of = _books(rng)
    age, readers = _readers(rng)
    appeal = _appeal(rng, age, book_genres, author_of)
    purchases = _purchases(rng, appeal)
    return Shop(books, readers, purchases, _visits(np.random.default_rng([seed, 1]), purchases))


def write_shop(shop: Shop, folder: Path) -> None:
    """Write books.csv, with the new ones, new-books.csv, readers.csv and purchases.csv."""
    _write(folder / "books.csv", [*shop.books, *NEW_BOOKS])
    _write(folder / "new-books.csv", NEW_BOOKS)
    _write(folder / "readers.csv", shop.readers)
    rows = [
        {"user_id": shop.readers[user]["user_id"], "item_id": shop.books[item]["item_id"], "ts": ts}
        for user, item, ts in shop.purchases.tolist()
    ]
    _write(folder / "purchases.csv", rows)
    ids = [
        (shop.readers[user]["user_id"], shop.books[item]["item_id"], ts, kind) for user, item, ts, kind in shop.visits
    ]
    _write(folder / "visits.csv", [dict(zip(("user_id", "item_id", "ts", "event"), row, strict=True)) for row in ids])


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _books(rng: np.random.Generator) -> tuple[NDArray[np.float64], list[dict[str, object]], NDArray[np.int64]]:
    """Genre shares (B, G), the table, and the author of each book (B,)."""
    author_genre = rng.integers(len(GENRES), size=N_AUTHORS)
    author_of = rng.integers(N_AUTHORS, size=N_BOOKS)
    shares = np.zeros((N_BOOKS, len(GENRES)))
    rows: list[dict[str, object]] = []
    taken: dict[str, int] = {}
    for book in range(N_BOOKS):
        main = int(author_genre[author_of[book]])
        genres = [main]
        if rng.random() < 0.35:
            genres += [int(g) for g in rng.integers(len(GENRES), size=1) if g != main]
        shares[book, genres] = 1 / len(genres)
        words = WORDS[GENRES[main]]
        title = str(rng.choice(PATTERNS)).format(words[int(rng.integers(len(words)))])
        taken[title] = taken.get(title, 0) + 1
        rows.append(
            {
                "item_id": f"b{book + 1:04d}",
                "title": title if taken[title] == 1 else f"{title}, part {taken[title]}",
                "author": _author(int(author_of[book])),
                "categories": "|".join(GENRES[g] for g in genres),
                "price": round(float(np.clip(rng.lognormal(2.7, 0.35), 4, 60)), 2),
                "year": int(2026 - np.clip(rng.gamma(1.6, 7), 0, 60)),
            }
        )
    return shares, rows, author_of


def _author(number: int) -> str:
    return f"{FIRST_NAMES[number % len(FIRST_NAMES)]} {LAST_NAMES[number // len(FIRST_NAMES)]}"


def _readers(rng: np.random.Generator) -> tuple[NDArray[np.int64], list[dict[str, object]]]:
    """The age band of each reader (U,), and the table."""
    age = rng.choice(len(AGE_BANDS), size=N_READERS, p=(0.08, 0.22, 0.3, 0.26, 0.14))
    region = rng.integers(len(REGIONS), size=N_READERS)
    rows: list[dict[str, object]] = [
        {"user_id": f"u{user + 1:04d}", "age_band": AGE_BANDS[age[user]], "region": REGIONS[region[user]]}
        for user in range(N_READERS)
    ]
    return age, rows


def _appeal(
    rng: np.random.Generator,
    age: NDArray[np.int64],
    book_genres: NDArray[np.float64],
    author_of: NDArray[np.int64],
) -> NDArray[np.float64]:
    """(U, B): how much each reader wants each book, as a log weight."""
    age_taste = rng.dirichlet(np.full(len(GENRES), 0.3), size=len(AGE_BANDS))
    own_taste = rng.dirichlet(np.full(len(GENRES), 0.15), size=N_READERS)
    taste = 0.5 * age_taste[age] + 0.5 * own_taste
    followed = rng.random((N_READERS, N_AUTHORS)) < 0.04
    popularity = -0.8 * np.log(rng.permutation(N_BOOKS) + 12)
    return popularity[None, :] + 7.0 * taste @ book_genres.T + 2.0 * followed[:, author_of]


def _purchases(rng: np.random.Generator, appeal: NDArray[np.float64]) -> NDArray[np.int64]:
    """(n, 3): reader, book, UNIX seconds; sorted by time. Gumbel noise makes the top ones a sample."""
    counts = np.clip(rng.lognormal(np.log(MEAN_PURCHASES) - 0.32, 0.8, size=N_READERS).astype(int), 2, 200)
    wanted = np.argsort(-(appeal + rng.gumbel(size=appeal.shape)), axis=1)
    users = np.repeat(np.arange(N_READERS), counts)
    items = np.concatenate([row[:count] for row, count in zip(wanted, counts, strict=True)])
    times = rng.integers(FIRST_SALE_S, LAST_SALE_S, size=len(users))
    order = np.argsort(times, kind="stable")
    return np.column_stack([users, items, times])[order]


def _visits(rng: np.random.Generator, purchases: NDArray[np.int64]) -> list[tuple[int, int, int, str]]:
    """The purchases of the first readers, the views and carts before them, and views and carts of other books.

    Of the purchases, two in five come days after the cart, and of one in three nothing was seen before.
    """
    rows: list[tuple[int, int, int, str]] = []
    for user, item, bought in purchases[purchases[:, 0] < N_VISITORS].tolist():
        viewed = bought - int(HOUR_S if rng.random() < 0.6 else HOUR_S * (2 + rng.exponential(150)))
        rows += [(user, item, bought, "purchase")]
        if rng.random() < 0.65:
            rows += [(user, item, viewed, "view"), (user, item, viewed + 60, "cart")]
        for step, other in enumerate(rng.choice(purchases[:, 1], size=int(rng.integers(3))).tolist()):
            rows.append((user, other, viewed - 60 * (step + 1), "view"))
            if rng.random() < 0.1:
                rows.append((user, other, viewed - 60 * (step + 1) + 20, "cart"))
    return sorted(rows, key=lambda row: (row[2], row[0], row[1]))


if __name__ == "__main__":
    write_shop(make_shop(), Path(__file__).parents[1] / "svc" / "cli" / "demo_files" / "data")
