"""`svc serve` with a certificate: HTTP/1.1 and HTTP/2 over TLS, with one worker and with two."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import Server, make_home, until
from tests.serving.artifacts import popularity_model
from tests.serving.certificates import Issuer

pytestmark = pytest.mark.system


def ask(
    server: Server, issuer: Issuer, *, http2: bool = True, client: Issuer | None = None, path: str = "/v1/health"
) -> httpx.Response:
    """Send a GET request over a new connection."""
    url = server.url.replace("http:", "https:")
    with httpx.Client(verify=issuer.trusted(client=client), http2=http2, http1=not http2, timeout=30) as asking:
        return asking.get(url + path)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_with_a_certificate_accepts_only_tls(tmp_path: Path, workers: str) -> None:
    """A server with a certificate accepts HTTP/1.1 and HTTP/2 only over TLS and only with a client certificate.

    SIGHUP replaces its own certificate. A certificate that does not match its key is refused, and the old one stays.
    """
    home = make_home(tmp_path, "a", popularity_model(0))
    issuer, other, clients = (Issuer(tmp_path, name) for name in ("server", "other", "clients"))
    env = {**issuer.environment(clients=clients), "SVC_METRICS_PORT": "0"}
    with Server(home, args=["--workers", workers], env=env) as server:
        posture = server.said("security.posture")[0]
        assert (posture["tls"], posture["client_certificates"]) == (True, True)
        for http2, version in ((False, "HTTP/1.1"), (True, "HTTP/2")):
            answer = ask(server, issuer, http2=http2, client=clients)
            assert (answer.status_code, answer.http_version) == (200, version)
        with pytest.raises(httpx.TransportError):
            ask(server, issuer)
        with pytest.raises(httpx.TransportError):
            server.get("/v1/health")
        monitoring = server.said("monitoring_started")[0]
        assert httpx.get(f"http://127.0.0.1:{monitoring['port']}/v1/health").status_code == 200

        issuer.chain.write_bytes(other.chain.read_bytes())
        server.send(signal.SIGHUP)
        assert "SVC_TLS_KEY_FILE" in server.wait_for("keys_reload_failed")["error"]
        assert ask(server, issuer, client=clients).status_code == 200
        issuer.key.write_bytes(other.key.read_bytes())
        server.send(signal.SIGHUP)
        server.wait_for("keys_reloaded")

        def is_renewed() -> bool:
            try:
                return all(ask(server, other, client=clients).status_code == 200 for _ in range(4))
            except httpx.TransportError:  # one worker still uses the old certificate
                return False

        until(is_renewed)
        assert server.stop() == 0
