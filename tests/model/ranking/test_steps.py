"""Work in steps."""

from __future__ import annotations

from svc.model.ranking.steps import Steps, result_of


def test_all_steps_are_taken_before_the_result() -> None:
    """The result is that of the last step, and work without a pause has a result, too."""
    taken: list[int] = []

    def work(n_steps: int) -> Steps[int]:
        for number in range(n_steps):
            taken.append(number)
            yield
        return sum(taken)

    assert result_of(work(0)) == 0
    assert result_of(work(4)) == 6
    assert taken == [0, 1, 2, 3]
