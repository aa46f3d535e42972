"""An object store in this process: svc's own client over an fsspec file system in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar

from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem


class ObjectsInMemory(MemoryFileSystem):
    """Objects by their address without its scheme, each with an ETag.

    `before` is called with the name of each operation and the address, before the operation.
    """

    cachable = False
    protocol: ClassVar[tuple[str, ...]] = ("s3", "gs", "az")

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda _operation, _path: None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.rpartition("://")[2].strip("/")

    def _tell(self, operation: str, path: str) -> None:
        self.calls.append((operation, path))
        self.before(operation, path)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self._tell("info", path)
        info = super().info(path, **options)
        return info | {"ETag": hashlib.sha256(super().cat_file(path)).hexdigest()} if info["type"] == "file" else info

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self._tell("cat_file", path)
        return bytes(super().cat_file(path, start, end, **options))

    def client(self) -> Any:
        """Return the store with awaited operations, as the clients of real stores have them."""
        return AsyncFileSystemWrapper(self, asynchronous=False)
