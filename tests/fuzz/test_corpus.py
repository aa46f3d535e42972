"""Every input that the fuzzer found worth keeping, once more, in an ordinary test."""

from __future__ import annotations

import pytest

from tests.fuzz.inputs import kept
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", list(TARGETS))
def test_inputs_of_the_corpus_raise_only_documented_errors(target: str) -> None:
    """No kept input raises anything but the errors that its reader may raise."""
    inputs = dict(kept(target))
    assert inputs
    for content in inputs.values():
        TARGETS[target](content)
