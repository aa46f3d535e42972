"""The inputs from which fuzzing starts: named cases as files, and inputs that the fuzzer found.

`corpus/<target>/` has the named cases. `corpus/<target>.zip` is optional. Each of its inputs reaches code that no other
kept input reaches. Its name is the SHA-1 of its content, as libFuzzer names inputs.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def kept(target: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every kept input of `target`, in a stable order."""
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
