"""The shards of an export."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from svc.export.request import Shard
from svc.model.ids import digest


@given(st.text(min_size=1).filter(lambda text: text.isprintable()), st.integers(1, 50))
def test_each_id_is_in_exactly_one_shard(text: str, count: int) -> None:
    """The digest of the id alone decides its shard."""
    assert sum(Shard(index, count).holds(digest(text.encode())) for index in range(count)) == 1
