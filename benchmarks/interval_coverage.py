"""How often do the intervals of a chosen winner hold the truth, and is a lead called more than chance that is none?

    python -m benchmarks.interval_coverage [--scores scores.npz] [--searches 300] [--users 100 500]

Searches of 40 trials of 6 algorithms are simulated: the users are drawn, the trial with the highest mean wins, and its
interval is compared with its mean over all users. Without `--scores` all trials are equally good, and alike in the
given share of their scores. `--scores` takes the scores of real trials: an .npz file with `scores`, (users, trials),
and `algorithms`, (trials,).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import origin
from svc.training.judging.intervals import Choice, interval, lead, paired_change

N_TRIALS, N_ALGORITHMS, N_EVERYBODY = 40, 6, 20_000


class Everybody(NamedTuple):
    """`scores`, (users, trials), of all users there are, whose means are the truth."""

    label: str
    scores: NDArray[np.float64]
    algorithms: list[str]


def equally_good(alike: float) -> Everybody:
    """Mostly zeros, as the scores of users are; moved so that all trials have the same mean."""
    rng = np.random.default_rng(1)
    drawn = rng.normal(size=(N_EVERYBODY, 1)) * alike**0.5
    drawn = drawn + rng.normal(size=(N_EVERYBODY, N_TRIALS)) * (1.0 - alike) ** 0.5
    scores = np.maximum(drawn - 0.8, 0.0)
    scores += 0.5 - scores.mean(axis=0)
    return Everybody(f"noise, {alike:.0%} alike", scores, [str(trial % N_ALGORITHMS) for trial in range(N_TRIALS)])


def outcomes(everybody: Everybody, n_users: int, n_searches: int) -> Iterator[tuple[bool, bool, bool, bool]]:
    """For each search whether the interval holds the truth, whether one that forgets the choice does, and whether the
    lead and a lead that forgets the choice are falsely called more than chance."""
    truth = everybody.scores.mean(axis=0)
    for seed in range(n_searches):
        rows = np.random.default_rng([seed, 7]).integers(0, len(everybody.scores), n_users)
        order = np.argsort(-everybody.scores[rows].mean(axis=0))
        scores = everybody.scores[rows][:, order]
        choice = Choice(scores, [everybody.algorithms[trial] for trial in order])
        low, high = interval(scores[:, 0], seed=seed, choice=choice)
        forgetful_low, forgetful_high = interval(scores[:, 0], seed=seed)
        is_worse = truth[order[0]] <= truth[order[choice.runner_up]] + 1e-12
        forgetful = paired_change(scores[:, 0], scores[:, choice.runner_up], seed=seed)
        yield (
            bool(low <= truth[order[0]] <= high),
            bool(forgetful_low <= truth[order[0]] <= forgetful_high),
            bool(is_worse and lead(choice, seed=seed).low > 0.0),
            bool(is_worse and forgetful.low > 0.0),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--searches", type=int, default=300)
    parser.add_argument("--users", type=int, nargs="+", default=[100, 500])
    options = parser.parse_args()
    print(*origin(), sep="\n")
    if options.scores:
        stored = np.load(options.scores)
        worlds = [Everybody(options.scores.stem, stored["scores"], stored["algorithms"].tolist())]
    else:
        worlds = [equally_good(alike) for alike in (0.0, 0.6, 0.95)]
    print("| scores | users | interval holds | forgetful | false lead | forgetful |\n|---|---|---|---|---|---|")
    for everybody in worlds:
        for n_users in options.users:
            shares = np.mean(list(outcomes(everybody, n_users, options.searches)), axis=0)
            cells = " | ".join(f"{share:.1%}" for share in shares)
            print(f"| {everybody.label} | {n_users} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
