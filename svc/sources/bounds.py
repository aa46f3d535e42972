"""Size limits of tables that a server reads while it serves requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from svc.errors import SourceTooLarge

LEAST_ROWS: Final = 1 << 20
LEAST_BYTES: Final = 64 << 20
"""The smallest bounds, for models with few items."""
TIMES_NEEDED: Final = 10
BYTES_A_CELL: Final = 512


@dataclass(frozen=True, slots=True)
class TableBounds:
    """Limits on the rows and bytes of a table after decompression, repeated rows included.

    A small compressed file may expand to gigabytes, and the owner of the data may not be the operator of the server.
    """

    max_rows: int
    max_bytes: int

    @classmethod
    def for_serving(cls, n_items: int, n_columns: int) -> TableBounds:
        """Return bounds of ten times `n_items` rows of `n_columns` cells of 512 bytes, at least 64 MiB."""
        needed = n_items * n_columns * BYTES_A_CELL
        return cls(max(LEAST_ROWS, TIMES_NEEDED * n_items), max(LEAST_BYTES, TIMES_NEEDED * needed))

    def check(self, n_rows: int, n_bytes: int, where: str) -> None:
        """Raise SourceTooLarge above a bound."""
        if n_rows > self.max_rows:
            raise SourceTooLarge(
                f"{where} has more than {self.max_rows} rows, ten times what the model's items need: "
                "leave out rows that are not needed",
                fields={"cap": self.max_rows},
            )
        if n_bytes > self.max_bytes:
            raise SourceTooLarge(
                f"{where} expands to more than {self.max_bytes} bytes, ten times what the model's items need: "
                "leave out rows and fields that are not needed",
                fields={"bytes_read": n_bytes, "cap": self.max_bytes},
            )
