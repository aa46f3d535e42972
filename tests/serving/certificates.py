"""Certificates for the tests of TLS, in files as operators have them."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path

import trustme

from svc.serving.transport.certificate import Certificate, Tls, read_certificate
from svc.settings import Settings


class Issuer:
    """An authority that writes the certificates it signs to `folder`."""

    def __init__(self, folder: Path, name: str = "server") -> None:
        self._authority = trustme.CA()
        self.chain, self.key, self.ca = (folder / f"{name}.{kind}.pem" for kind in ("chain", "key", "ca"))
        self.ca.write_bytes(self._authority.cert_pem.bytes())
        self.issue()

    def issue(self, *, ends: datetime | None = None) -> None:
        """Write a new certificate for this machine, and its key."""
        issued = self._authority.issue_cert("localhost", "127.0.0.1", not_after=ends)
        self.key.touch(mode=0o600)
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))

    def environment(self, *, clients: Issuer | None = None) -> dict[str, str]:
        """Return the variables of a server with this certificate, which accepts clients signed by `clients`."""
        variables = {"SVC_TLS_CERT_FILE": str(self.chain), "SVC_TLS_KEY_FILE": str(self.key)}
        return variables if clients is None else {**variables, "SVC_TLS_CLIENT_CA_FILE": str(clients.ca)}

    def settings(self, *, clients: Issuer | None = None) -> Settings:
        return Settings.from_env(self.environment(clients=clients))

    def certificate(self, *, clients: Issuer | None = None) -> Certificate:
        found = read_certificate(self.settings(clients=clients))
        assert found is not None
        return found

    def tls(self, *, clients: Issuer | None = None) -> Tls:
        return Tls(self.certificate(clients=clients))

    def trusted(self, *, client: Issuer | None = None) -> ssl.SSLContext:
        """Return the TLS context of a client, with the authority that it trusts and its own certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if client is not None:
            context.load_cert_chain(client.chain, client.key)
        return context
