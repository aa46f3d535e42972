"""The addresses that a recipe may name: local paths, `file://`, object stores and http(s).

No address may contain another address after `::`. A remote address may have neither a path segment `.` or `..`, even if
it is percent-encoded, nor user-info. The container in `abfs://container@account` is no user-info.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from svc.errors import RecipeSecurityError
from svc.local_paths import without_detours
from svc.names import EXTRAS_OF_SCHEMES, HTTP_SCHEMES

LOCAL = "file"
SCHEMES = (LOCAL, *EXTRAS_OF_SCHEMES, "http", "https")
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://")
_NO_FILE = re.compile(r"(?:data|javascript):", re.IGNORECASE)
_IPV6_HOST = re.compile(r"^([a-z]+://)\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z]+)?\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHELL = re.compile(r"~(?:/|$)|\$[A-Za-z_]")
"""What a shell would replace. Taken as it stands, `~/a.svc` would make a folder named `~`."""
_CONTAINER = re.compile(r"[a-z0-9$\-]{1,63}@[A-Za-z0-9.\-]+")


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed address. `uri` has its scheme in lower case.

    `path` is the local file, which may be relative, or None for a remote address.
    """

    scheme: str
    uri: str
    path: Path | None

    @property
    def is_http(self) -> bool:
        return self.scheme in HTTP_SCHEMES

    @property
    def is_remote(self) -> bool:
        return self.path is None

    def resolve(self, base_dir: Path) -> Path:
        """Return the local path. A relative path starts at `base_dir`.

        Symlinks are not followed. `..` is resolved unless a symlink gives it another meaning.
        """
        assert self.path is not None, "remote locations have no local path"
        return without_detours(base_dir / self.path)


def parse_location(uri: str | os.PathLike[str]) -> Location:
    """Return the location that `uri` names.

    Raises RecipeSecurityError for a forbidden address. The message contains no secrets of the address.
    """
    text = os.fspath(uri)
    if not text.strip():
        raise RecipeSecurityError("the path is empty")
    if _CONTROL.search(text):
        raise RecipeSecurityError("the path holds a control character")
    if no_file := _NO_FILE.match(text):
        raise RecipeSecurityError(f"{no_file[0].lower()} is not a file name; name a file")
    if _SHELL.match(text):
        raise RecipeSecurityError("`~` and `$NAME` are not expanded here; write the whole path, or ${SVC_RECIPE_NAME}")
    match = _URI.match(text)
    scheme = match["scheme"].lower() if match else LOCAL
    # One spelling, because `S3://` must pass the same checks as `s3://`.
    text = f"{scheme}://{text[match.end() :]}" if match else text
    if scheme not in SCHEMES:
        allowed = ", ".join(f"{each}://" for each in SCHEMES)
        raise RecipeSecurityError(f"scheme {scheme}:// is not allowed; allowed: a local path, {allowed}")
    # fsspec would open the address behind `::` through the one before it, whatever the checks say of the first.
    if "::" in _IPV6_HOST.sub(r"\1", text):
        raise RecipeSecurityError("chained addresses (`::`) are not allowed; name one file")
    if not match:
        return Location(LOCAL, text, Path(text))
    return _file_uri(text) if scheme == LOCAL else _remote(scheme, text)


def require_below(path: Path, root: Path) -> None:
    """Raise RecipeSecurityError unless `path`, after its symlinks, is below `root`. Neither path needs to exist."""
    # Both are resolved, because the root may be a symlink itself.
    if not path.resolve().is_relative_to(root.resolve()):
        raise RecipeSecurityError(f"{path} lies outside SVC_ARTIFACT_ROOT ({root})")


def _file_uri(text: str) -> Location:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise RecipeSecurityError("file:// takes no host; write file:///absolute/path")
    path = unquote(parts.path)
    # Again after decoding, which may make a control character of %0A.
    if _CONTROL.search(path) or not path.startswith("/"):
        raise RecipeSecurityError("file:// needs an absolute path; write file:///absolute/path")
    return Location(LOCAL, text, Path(path))


def _remote(scheme: str, text: str) -> Location:
    if scheme in HTTP_SCHEMES and re.search(r"[\\\s]", text):
        raise RecipeSecurityError("the address holds a backslash or a blank; encode it")
    try:
        parts = urlsplit(text)
        # urlsplit checks a port only when it is read.
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise RecipeSecurityError("the address has no valid host and port") from None
    azure_container = scheme in ("abfs", "abfss") and _CONTAINER.fullmatch(parts.netloc)
    # Decoded, because %40 is an `@` to some clients.
    if "@" in unquote(parts.netloc) and not azure_container:
        raise RecipeSecurityError(
            "user-info (`user:password@`) is not allowed in an address; use the client's own credentials"
        )
    if not host:
        raise RecipeSecurityError(f"{scheme}:// names no host or bucket")
    # Clients differ in whether they resolve such segments, so the checked file might not be the one that is read.
    if any(unquote(segment) in ("..", ".") for segment in parts.path.split("/")):
        raise RecipeSecurityError("`.` and `..` are not allowed in the path of a remote address")
    return Location(scheme, text, None)
