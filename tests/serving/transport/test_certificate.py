"""TLS certificates: the files that `svc serve` refuses at its start, and their replacement."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from svc.env_file import MAX_BYTES
from svc.errors import ConfigError
from svc.serving.transport.certificate import read_certificate
from svc.settings import Settings
from tests.serving.certificates import Issuer


def test_without_the_variables_there_is_no_tls() -> None:
    """Without these variables, no certificate is read."""
    assert read_certificate(Settings()) is None


def test_a_certificate_is_read_with_its_key(tmp_path: Path) -> None:
    """TLS 1.2 is the lowest version. Clients need a certificate only if their authority is set.

    The repr of a certificate does not show the key.
    """
    issuer = Issuer(tmp_path)
    certificate = issuer.certificate()
    context = certificate.context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE
    assert "PRIVATE" not in repr(certificate)
    assert issuer.certificate(clients=issuer).context().verify_mode is ssl.CERT_REQUIRED


def let_others_read(issuer: Issuer) -> None:
    issuer.key.chmod(0o640)


def mix(issuer: Issuer) -> None:
    chain = issuer.chain.read_bytes()
    issuer.issue()
    issuer.chain.write_bytes(chain)


def end(issuer: Issuer) -> None:
    issuer.issue(ends=datetime.now(UTC) - timedelta(days=1))


def garble_chain(issuer: Issuer) -> None:
    issuer.chain.write_text("nothing")


def name_unknown_curve(issuer: Issuer) -> None:
    """Replace the last byte of the curve's object identifier in the certificate."""
    chain = ssl.PEM_cert_to_DER_cert(issuer.chain.read_text())
    p256 = bytes.fromhex("06082a8648ce3d030107")
    assert p256 in chain
    issuer.chain.write_text(ssl.DER_cert_to_PEM_cert(chain.replace(p256, p256[:-1] + b"\x02")))


def garble_key(issuer: Issuer) -> None:
    issuer.key.write_text("nothing")


def lock_key(issuer: Issuer) -> None:
    key = load_pem_private_key(issuer.key.read_bytes(), None)
    issuer.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")))


def lose_key(issuer: Issuer) -> None:
    issuer.key.unlink()


def garble_ca(issuer: Issuer) -> None:
    issuer.ca.write_text("nothing")


def empty_ca(issuer: Issuer) -> None:
    issuer.ca.write_bytes(b"")


def grow(file: str) -> Callable[[Issuer], None]:
    """Return a function that makes a file longer than MAX_BYTES."""

    def harm(issuer: Issuer) -> None:
        with getattr(issuer, file).open("ab") as opened:
            opened.write(b"\n" * MAX_BYTES)

    return harm


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (let_others_read, "SVC_TLS_KEY_FILE: others may read .*: give it mode 600"),
        (mix, "SVC_TLS_KEY_FILE: .* is not the key of "),
        (end, "SVC_TLS_CERT_FILE: the certificate of .* ended at 20"),
        (garble_chain, "SVC_TLS_CERT_FILE: .* holds no certificate in PEM"),
        (name_unknown_curve, "SVC_TLS_CERT_FILE: the key of .* cannot be used: Curve .* is not supported"),
        (garble_key, "SVC_TLS_KEY_FILE: .* holds no private key in PEM, or one with a passphrase"),
        (lock_key, "SVC_TLS_KEY_FILE: .* holds no private key in PEM, or one with a passphrase"),
        (lose_key, "SVC_TLS_KEY_FILE: .* cannot be read: No such file"),
        (grow("chain"), f"SVC_TLS_CERT_FILE: .* is larger than {MAX_BYTES} bytes"),
        (grow("key"), f"SVC_TLS_KEY_FILE: .* is larger than {MAX_BYTES} bytes"),
        (grow("ca"), f"SVC_TLS_CLIENT_CA_FILE: .*ca.pem is larger than {MAX_BYTES} bytes"),
        (garble_ca, "SVC_TLS_CERT_FILE: TLS cannot use .*ca.pem"),
        (empty_ca, "SVC_TLS_CERT_FILE: TLS cannot use .*ca.pem: Empty certificate data"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, harm: Callable[[Issuer], None], text: str) -> None:
    """The error names variable and file before the first connection."""
    issuer = Issuer(tmp_path)
    harm(issuer)
    with pytest.raises(ConfigError, match=text):
        read_certificate(issuer.settings(clients=issuer))


def test_comments_of_a_bundle_may_have_any_bytes(tmp_path: Path) -> None:
    """Bundles name authorities such as "Főtanúsítvány" above their certificates."""
    issuer = Issuer(tmp_path)
    issuer.ca.write_bytes("# Főtanúsítvány\n".encode() + b"# \xff\n" + issuer.ca.read_bytes())
    assert len(issuer.tls(clients=issuer).context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ({"tls_key_file": None}, "SVC_TLS_KEY_FILE is not set, but SVC_TLS_CERT_FILE is"),
        ({"tls_cert_file": None}, "SVC_TLS_CERT_FILE is not set, but SVC_TLS_KEY_FILE is"),
        ({"tls_cert_file": None, "tls_key_file": None}, "SVC_TLS_CLIENT_CA_FILE needs"),
    ],
)
def test_an_incomplete_set_of_tls_variables_is_refused(tmp_path: Path, missing: dict[str, None], text: str) -> None:
    """The message names the missing variable."""
    issuer = Issuer(tmp_path)
    with pytest.raises(ConfigError, match=text):
        read_certificate(replace(issuer.settings(clients=issuer), **missing))


def test_a_replaced_certificate_serves_new_connections(tmp_path: Path) -> None:
    """Open connections keep their TLS context."""
    issuer = Issuer(tmp_path)
    tls = issuer.tls()
    before = tls.context
    issuer.issue()
    tls.replace(issuer.certificate())
    assert tls.context is not before
    assert tls.certificate == issuer.certificate()
