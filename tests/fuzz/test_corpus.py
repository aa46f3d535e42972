"""Every kept input of the fuzzer runs once more as an ordinary test."""

from __future__ import annotations

import pytest

from tests.fuzz.inputs import kept
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", list(TARGETS))
def test_inputs_of_the_corpus_raise_only_documented_errors(target: str) -> None:
    """The parser of each kept input accepts it, or raises an error that it documents."""
    inputs = dict(kept(target))
    assert inputs
    for content in inputs.values():
        TARGETS[target](content)
