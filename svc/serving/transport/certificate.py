"""The server's TLS certificate and private key (SVC_TLS_*), which can be replaced while the server runs."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from svc.env_file import read_named_file
from svc.errors import ConfigError
from svc.late_imports import LateModule
from svc.settings import Settings

if TYPE_CHECKING:
    from cryptography import exceptions, x509
    from cryptography.hazmat.primitives import serialization
else:
    exceptions = LateModule("cryptography.exceptions")
    x509 = LateModule("cryptography.x509")
    serialization = LateModule("cryptography.hazmat.primitives.serialization")

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers for TLS 1.2 that HTTP/2 permits (RFC 9113, appendix A)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain and its private key, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None
    """Certificates of the authorities that sign client certificates, in PEM. None if clients need no certificate."""

    def context(self) -> ssl.SSLContext:
        """Return a server's TLS context with this certificate. Raises OSError or ValueError if OpenSSL refuses it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A client of TLS 1.2 could demand one handshake after another on one connection.
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_ciphers(_CIPHERS)
        context.set_alpn_protocols(["h2", "http/1.1"])
        if self.client_ca is not None:  # an empty file is an error
            # Comments of a bundle may have other bytes, and `cadata` must be ASCII.
            context.load_verify_locations(cadata=self.client_ca.decode("ascii", "ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
        # `load_cert_chain` reads only files. A file in memory has the bytes that were checked, even if the user's file
        # has changed since then.
        with os.fdopen(os.memfd_create("certificate"), "wb") as file:
            file.write(self.key + b"\n" + self.chain)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context


class Tls:
    """The current certificate, and its context for new connections. Open connections keep their earlier certificate."""

    def __init__(self, certificate: Certificate) -> None:
        self.replace(certificate)

    def replace(self, certificate: Certificate) -> None:
        """Use another certificate for new connections. Raises OSError or ValueError if OpenSSL refuses it."""
        # The context is made first. If OpenSSL refuses the new certificate, the old one stays in use.
        self.certificate, self.context = certificate, certificate.context()


def read_certificate(settings: Settings) -> Certificate | None:
    """Return the certificate that the SVC_TLS variables name, or None if they are unset.

    Raises ConfigError if only some of the variables are set, or if a file cannot be read or used.
    """
    names = {"SVC_TLS_CERT_FILE": settings.tls_cert_file, "SVC_TLS_KEY_FILE": settings.tls_key_file}
    if not any(names.values()):
        if settings.tls_client_ca_file:
            raise ConfigError("SVC_TLS_CLIENT_CA_FILE needs SVC_TLS_CERT_FILE and SVC_TLS_KEY_FILE: set them too")
        return None
    for name, value in names.items():
        if not value:
            (other,) = names.keys() - {name}
            raise ConfigError(f"{name} is not set, but {other} is: set both or neither")
    chain = read_named_file("SVC_TLS_CERT_FILE", str(settings.tls_cert_file))
    key = read_named_file("SVC_TLS_KEY_FILE", str(settings.tls_key_file), is_secret=True)
    client_ca = None
    if settings.tls_client_ca_file:
        client_ca = read_named_file("SVC_TLS_CLIENT_CA_FILE", settings.tls_client_ca_file)
    certificate = Certificate(chain, key, client_ca)
    _check_pair(certificate, settings)
    try:
        certificate.context()
    except (OSError, ValueError) as error:
        used = (
            settings.tls_cert_file if client_ca is None else f"{settings.tls_cert_file}, {settings.tls_client_ca_file}"
        )
        raise ConfigError(f"SVC_TLS_CERT_FILE: TLS cannot use {used}: {error}") from None
    return certificate


def _check_pair(certificate: Certificate, settings: Settings) -> None:
    """Raise ConfigError if the first certificate of the chain does not match the key or has expired.

    Also raises it if the certificate or the key is not valid PEM or of an unknown kind, or if the key has a passphrase.
    """
    try:
        first = x509.load_pem_x509_certificates(certificate.chain)[0]
    except ValueError:
        raise ConfigError(f"SVC_TLS_CERT_FILE: {settings.tls_cert_file} holds no certificate in PEM") from None
    try:
        key = serialization.load_pem_private_key(certificate.key, None)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm):
        raise ConfigError(
            f"SVC_TLS_KEY_FILE: {settings.tls_key_file} holds no private key in PEM, or one with a passphrase"
        ) from None
    try:
        public = first.public_key()
    except (ValueError, exceptions.UnsupportedAlgorithm) as error:
        raise ConfigError(f"SVC_TLS_CERT_FILE: the key of {settings.tls_cert_file} cannot be used: {error}") from None
    if key.public_key() != public:
        raise ConfigError(f"SVC_TLS_KEY_FILE: {settings.tls_key_file} is not the key of {settings.tls_cert_file}")
    if first.not_valid_after_utc <= datetime.now(UTC):
        ended = first.not_valid_after_utc.isoformat()
        raise ConfigError(f"SVC_TLS_CERT_FILE: the certificate of {settings.tls_cert_file} ended at {ended}")
