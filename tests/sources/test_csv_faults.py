"""What is wrong with a csv file, and where."""

from __future__ import annotations

import io

import pytest

from svc.sources.csv_faults import MAX_LINE_CHARACTERS, encoding_hint, find_fault, header_hint


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a,b\n1,2\n\n3,4\n", None),
        ("a,b\n1,2,3\n", "line 2 has 3 fields where the header has 2: '1,2,3'"),
        ("a,b\n1\n", "line 2 has 1 field where the header has 2: '1'"),
        ('a,b\n"1\n2",3\n4\n', "line 4 has 1 field where the header has 2: '4'"),
        ('a,b\n1,"2\n3,4\n', "line 2 opens a quote that nothing closes"),
        (f"a,b\n1,{'x' * 140_000}\n", "line 2 has a value of more than 131072 characters"),
        (f"a,b\n{'x' * MAX_LINE_CHARACTERS}x\n", f"line 2: the line has more than {MAX_LINE_CHARACTERS} characters"),
    ],
)
def test_the_first_faulty_line_is_named(text: str, fault: str | None) -> None:
    """Counted as an editor counts, also behind a value of several lines."""
    assert find_fault(io.StringIO(text, newline=""), ",", 2) == fault


def test_a_header_in_one_piece_names_the_delimiter() -> None:
    """Tabs as they are written in YAML; a proper header needs no hint."""
    assert 'set `delimiter: ";"`' in header_hint(["user;item"], ",")
    assert 'set `delimiter: "\\t"`' in header_hint(["user\titem"], ",")
    assert header_hint(["user", "item"], ",") == header_hint(["user"], ",") == ""
    assert "UTF-16" in header_hint(["u\0s\0e\0r\0"], ",")


def test_the_mark_of_a_file_names_its_encoding() -> None:
    """Without one, the usual other encoding is proposed."""
    assert "utf-16" in encoding_hint("user".encode("utf-16"))
    assert "utf-8" in encoding_hint(b"\xef\xbb\xbfuser")
    assert "latin-1" in encoding_hint("größe".encode("latin-1"))
