"""Signing keys in the forms that a caller may give."""

from __future__ import annotations

from collections.abc import Mapping

from svc.artifact.keys import SigningKeys, load_signing_keys, parse_signing_keys
from svc.artifact.store import require_file
from svc.env_file import keys_hint
from svc.errors import ConfigError
from svc.key_files import key_list
from svc.settings import Settings

Keys = str | Mapping[str, str] | None
"""`kid:hex64` entries separated by commas, as in SVC_SIGNING_KEYS, or hex64 by kid. None: SVC_SIGNING_KEYS itself."""


def keys_text(keys: Keys, settings: Settings, artifact: str | None = None) -> str:
    """Return the keys in the form of SVC_SIGNING_KEYS.

    Raises ConfigError if there are none or they are malformed, and ArtifactReadError if there are none and the local
    file `artifact` does not exist.
    """
    if keys is None:
        text = key_list(settings.signing_keys, settings.signing_keys_file, "SVC_SIGNING_KEYS")
    elif isinstance(keys, str):
        text = keys
    else:
        text = ",".join(f"{kid}:{key}" for kid, key in keys.items())
    if not text.strip():
        if artifact is not None:
            require_file(artifact)
        raise ConfigError(
            "no signing keys: give `keys`, or set SVC_SIGNING_KEYS to those that the artifact is signed with"
            f"{'' if artifact is None else keys_hint(artifact)}"
        )
    if keys is not None:
        parse_signing_keys(text, "keys")
    return text


def signing_keys(keys: Keys, settings: Settings, artifact: str | None = None) -> SigningKeys:
    """Return the parsed keys, with SVC_VERIFY_KEYS if `keys` is None. Raises ConfigError, which shows no key."""
    if keys is None and settings.verify_keys:
        return load_signing_keys(settings)
    return parse_signing_keys(keys_text(keys, settings, artifact))
