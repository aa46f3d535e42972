"""What the fuzzer feeds: any bytes must end in svc's own errors, never in another exception or a crash.

The bytes of a request body must also mean what they mean to the parser of small bodies.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from svc.artifact import layout
from svc.artifact.keys import development_keys, verify
from svc.errors import ArtifactError, RecipeError
from svc.model import codec
from svc.recipe.load import load_recipe
from svc.serving import large_bodies
from svc.settings import Settings
from tests.serving.bodies import expected, found, several

CAP = 1 << 20
SETTINGS = Settings()
KEYS = development_keys()


def artifact(data: bytes) -> None:
    """The first byte chooses how deep the rest is put: a whole file, a payload, or the pickle within one."""
    rest = memoryview(data)[1:]
    with suppress(ArtifactError):
        depth = data[0] % 3 if data else 0
        if depth == 0:
            read(rest)
        elif depth == 1:
            codec.decode(rest)
        else:
            codec.decode(memoryview(b"".join(codec._lay_out(bytes(rest), [memoryview(bytes(64))]))))


def read(file: memoryview) -> None:
    with suppress(ArtifactError):
        layout.kid_of(file)
    parsed = layout.parse(file, max_payload_bytes=CAP)
    with suppress(ArtifactError):
        verify(parsed, KEYS)
    parsed.header.get("kid")


def recipe(data: bytes) -> None:
    """The bytes are a recipe file."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file, suppress(RecipeError):
        file.write(data)
        file.flush()
        load_recipe(Path(file.name), {}, settings=SETTINGS)


def body(data: bytes) -> None:
    """The first byte chooses the size of the pieces, the rest is a request body: read in pieces it means the same.

    So does a body that holds it many times and comes in small parts, with little more at hand than one of them.
    """
    document = data[1:]
    little = 4 * len(document) + 64
    with patch.object(large_bodies, "PIECE_BYTES", (1, 24, CAP)[data[0] % 3 if data else 0]):
        assert found(document) == expected(document)
        with patch.object(large_bodies, "AHEAD_BYTES", little):
            assert found(several(document, 3 * little), step=13) == expected(several(document, 3 * little))


TARGETS = {"artifact": artifact, "recipe": recipe, "body": body}
