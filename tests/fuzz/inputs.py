"""The inputs that fuzzing starts from: named cases as files, and what the fuzzer found, in one archive a target.

`corpus/<target>/` holds the named cases. `corpus/<target>.zip`, where there is one, holds the inputs which reach code
that no other kept input reaches, under the SHA-1 of their content, as libFuzzer names them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def kept(target: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of every kept input of `target`, in a stable order."""
    for file in sorted((CORPUS / target).iterdir()):
        yield file.name, file.read_bytes()
    found = CORPUS / f"{target}.zip"
    if found.exists():
        with zipfile.ZipFile(found) as archive:
            for name in archive.namelist():
                yield name, archive.read(name)


def unpack(target: str, folder: Path) -> None:
    """Write every kept input of `target` to `folder`, where the fuzzer reads them and adds what it finds."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in kept(target):
        (folder / name).write_bytes(content)
