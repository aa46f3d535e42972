"""Lists of keys in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.errors import ConfigError
from svc.key_files import key_list


def test_a_file_holds_what_the_variable_would(tmp_path: Path) -> None:
    """Entries by lines or commas, with comments."""
    path = tmp_path / "keys"
    path.write_text("# shop\na:1,b:2,\n\nc:3  # the new one\n")
    assert key_list("", str(path), "SVC_X") == "a:1,b:2,c:3"
    assert key_list("a:1", None, "SVC_X") == "a:1"


def test_a_file_that_cannot_be_used_is_named_without_its_content(tmp_path: Path) -> None:
    """Nor may there be two places that say different things."""
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    for file, words in (("none", "cannot be read"), (".", "cannot be read"), ("odd", "is not UTF-8")):
        with pytest.raises(ConfigError, match=f"SVC_X_FILE: .*{words}"):
            key_list("", str(tmp_path / file), "SVC_X")
    with pytest.raises(ConfigError, match="both set"):
        key_list("a:1", str(tmp_path / "odd"), "SVC_X")
