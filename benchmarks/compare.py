"""What does `svc.compare` say of film ratings? The figures and the picture of docs/howto/notebook.md.

    python -m benchmarks.compare ratings.csv [--plot docs/images/compare.png]

The file has the columns user_id, item_id and rating; ratings of 7 and more count.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

import svc

CANDIDATES: dict[str, Any] = {
    "popular": {"algorithms": ["TopPop"], "n_trials": 1},
    "cosine": {"algorithms": ["CosineKNN"], "n_trials": 4},
    "walks": {"algorithms": ["RP3beta"], "n_trials": 4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ratings", type=Path, help="csv")
    parser.add_argument("--plot", type=Path, help="also draw the means here, as .png or .svg")
    parser.add_argument("--seeds", type=int, default=3, help="splits")
    options = parser.parse_args()
    ratings = pd.read_csv(options.ratings, dtype={"user_id": str, "item_id": str})
    ratings = ratings[ratings["rating"] >= 7]
    comparison = svc.compare(CANDIDATES, ratings, seeds=options.seeds, metrics=["ndcg", "recall"], progress=True)
    print(comparison.round(4))
    print(comparison.differences.round(4))
    if options.plot is not None:
        axes: Any = comparison.plot()
        axes.figure.savefig(options.plot, dpi=110)


if __name__ == "__main__":
    main()
