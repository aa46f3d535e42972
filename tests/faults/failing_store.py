"""An object store in memory whose n-th call of one kind fails, before its effect or after it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem

CALLS = {"info": "info", "list": "ls", "get": "cat_file", "put": "put_file", "remove": "rm_file"}


class FailingStore(MemoryFileSystem):
    """A store of `contents` by path. With `lost`, the call that fails has its effect, and only its answer is lost."""

    protocol = "s3"
    cachable = False

    def __init__(self, contents: Mapping[str, bytes], kind: str = "", nth: int = 0, *, lost: bool = False) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.fail("", 0, lost=False)
        for path, content in contents.items():
            self.pipe_file(path, content)
        self.fail(kind, nth, lost=lost)

    def fail(self, kind: str, nth: int, *, lost: bool) -> None:
        """Count from 0 again, and let call `nth` of `kind` fail, or none if `nth` is 0."""
        self._failing, self._nth, self._lost = kind, nth, lost
        self.made = 0

    @property
    def contents(self) -> dict[str, bytes]:
        return {path: file.getvalue() for path, file in self.store.items()}

    @property
    def failed(self) -> bool:
        return 0 < self._nth <= self.made

    def wrapped(self, *_: object, **__: object) -> AsyncFileSystemWrapper:
        """Return the store as a client of fsspec."""
        return AsyncFileSystemWrapper(self, asynchronous=False)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("s3://").strip("/")

    def _made(self, kind: str, call: Any) -> Any:
        self.made += kind == self._failing
        fails = kind == self._failing and self.made == self._nth
        if fails and not self._lost:
            raise ConnectionResetError("the store closed the connection")
        answer = call()
        if fails:
            raise ConnectionResetError("the store closed the connection")
        return answer

    def info(self, path: str, **options: Any) -> Any:
        def told() -> Any:
            info = MemoryFileSystem.info(self, path, **options)
            file = self.store.get(self._strip_protocol(path))
            return info if file is None else {**info, "ETag": hashlib.sha256(file.getvalue()).hexdigest()}

        return self._made("info", told)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self._made("list", lambda: MemoryFileSystem.ls(self, path, detail, **options))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        return self._made("get", lambda: MemoryFileSystem.cat_file(self, path, start, end, **options))

    def put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        def put() -> None:
            self.pipe_file(rpath, Path(lpath).read_bytes())

        return self._made("put", put)

    def rm_file(self, path: str) -> Any:
        return self._made("remove", lambda: self.store.pop(self._strip_protocol(path)))
