"""Keys take turns, and those that wait with one key are served in the order of arrival."""

from __future__ import annotations

import random

from svc.serving.turns import Turns


def turns_of(waiting: str) -> Turns[str]:
    """Return turns with one that waits for each letter. The letter is its key, and its name has its number too."""
    turns = Turns[str]()
    for number, key in enumerate(waiting):
        turns.append(key, f"{key}{number}")
    return turns


def test_keys_take_turns_and_those_of_a_key_are_served_in_order() -> None:
    turns = turns_of("aaab")
    turns.append_first("c", "c4")
    assert len(turns) == 5
    turns.remove("a", "a1")
    turns.remove("a", "a1")
    turns.remove("d", "d0")
    assert list(turns) == ["c4", "a0", "a2", "b3"]
    assert [turns.pop() for _ in range(4)] == ["c4", "a0", "b3", "a2"]
    assert not turns


def test_a_removed_last_one_takes_its_key_away() -> None:
    turns = turns_of("ab")
    turns.remove("a", "a0")
    assert (turns.most_ahead("c"), turns.pop(), len(turns)) == (1, "b1", 0)
    turns = turns_of("ab")
    turns.clear()
    assert (len(turns), turns.most_ahead("a")) == (0, 0)


def test_a_new_one_lets_at_most_the_stated_number_go_first() -> None:
    """The number is exact with one other key, and for the key with the longest queue."""
    draw = random.Random(1)
    for _ in range(500):
        waiting = "".join(draw.choices("abcd", (8, 4, 2, 1), k=draw.randrange(20)))
        for key in "abcde":
            turns = turns_of(waiting)
            for _ in range(draw.randrange(3)):
                if turns:
                    turns.pop()
            most = turns.most_ahead(key)
            turns.append(key, "new")
            order = [turns.pop() for _ in range(len(turns))]
            assert order.index("new") <= most <= len(order) - 1
    assert turns_of("a" * 64).most_ahead("b") == 1
    assert turns_of("a" * 64 + "b").most_ahead("b") == 3
    assert turns_of("a" * 64 + "b").most_ahead("a") == 65
