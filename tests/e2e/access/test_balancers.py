"""The balancer configurations of docs/deploy, tested with real nginx, HAProxy and svc processes."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import trustme

from tests.e2e.server import put

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, Shop

pytestmark = pytest.mark.integration
DEPLOY = Path(__file__).parents[3] / "docs" / "deploy"
READY_TRIES = 100
Prepare = Callable[[Path, dict[str, int]], list[str]]
CHECKED_AFTER_S = 3.0  # HAProxy has finished its first health checks by then


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def with_free_ports(text: str, ports: dict[str, int]) -> str:
    """Return the text of a configuration with free ports in place of its own."""
    return re.sub(
        r"(?<=listen )80\b|(?<=bind :)80\b|(?<=listen )443\b|\b808[012]\b", lambda match: str(ports[match[0]]), text
    )


def nginx(folder: Path, ports: dict[str, int], file: str = "svc.conf") -> list[str]:
    text = with_free_ports((DEPLOY / "nginx" / file).read_text(), ports).replace("/etc/nginx/svc.", f"{folder}/svc.")
    for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        text = text.replace("http {", f"http {{\n  {name}_temp_path {folder}/{name};", 1)
    text = text.replace("http {", "http {\n  access_log off;", 1)
    (folder / "nginx.conf").write_text(f"pid {folder}/nginx.pid;\nerror_log {folder}/error.log;\ndaemon off;\n{text}")
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def nginx_replicas(folder: Path, ports: dict[str, int]) -> list[str]:
    return nginx(folder, ports, "replicas.conf")


def haproxy_replicas(folder: Path, ports: dict[str, int]) -> list[str]:
    text = with_free_ports((DEPLOY / "haproxy" / "replicas.cfg").read_text(), ports)
    (folder / "replicas.cfg").write_text(text.replace("bind :", "bind 127.0.0.1:"))
    return ["haproxy", "-db", "-f", str(folder / "replicas.cfg")]


def haproxy(folder: Path, ports: dict[str, int]) -> list[str]:
    shutil.copy(DEPLOY / "haproxy" / "recipes.map", folder)
    text = with_free_ports((DEPLOY / "haproxy" / "haproxy.cfg").read_text(), ports)
    text = text.replace("/etc/haproxy/recipes.map", f"{folder}/recipes.map").replace("bind :", "bind 127.0.0.1:")
    (folder / "haproxy.cfg").write_text(text)
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


@contextmanager
def running_process(command: list[str], port: int) -> Iterator[str]:
    """Run a balancer or collector and yield its URL as soon as it listens on `port`."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(READY_TRIES):
            assert process.poll() is None, command
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                wait_at_most(process, 0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def wait_at_most(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the process for at most `seconds`, and return even if it still runs."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return


def ask(url: str, recipe: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/recipes/{recipe}:recommend", json={"user_id": "u1", "limit": 1}, timeout=30, verify=False
    )


@contextmanager
def in_front(shop: Shop, prepares: tuple[Prepare, ...], servers: Sequence[Server]) -> Iterator[dict[str, str]]:
    """Run the installed balancers in front of both servers at the same time, and yield the URL of each by its name."""
    own = {f"808{number}": int(server.url.rpartition(":")[2]) for number, server in enumerate(servers, 1)}
    with ExitStack() as stack:
        urls = {}
        for prepare in prepares:
            name = prepare.__name__
            if shutil.which(name.partition("_")[0]) is not None:
                ports, folder = own | {"80": free_port()}, shop.folder / name
                folder.mkdir()
                urls[name] = stack.enter_context(running_process(prepare(folder, ports), ports["80"]))
        if not urls:
            pytest.skip("neither nginx nor haproxy is installed")
        yield urls


def write_recipes(shop: Shop, folders: dict[str, Path]) -> None:
    """Write a recipe of each name into its folder. All but `empty` have the model of the shop."""
    text = shop.recipe.read_text().replace("path: ", f"path: {shop.folder}/")
    shop.recipe.unlink()
    for name, folder in folders.items():
        folder.mkdir(exist_ok=True)
        own = text.replace("name: shop", f"name: {name}")
        put(folder / f"{name}.yaml", own.replace("shop.svc", "empty.svc") if name == "empty" else own)


def test_recipes_reach_their_own_process(shop: Shop, serve: Callable[..., Server], artifact: bytes) -> None:
    """Each balancer sends each request to the one process that serves its recipe.

    If one process ends, its recipe gets 502 or 503 and the other recipe is still answered.
    """
    shop.give(artifact)
    folders = {name: shop.folder / f"only-{name}" for name in ("books", "books-cold-start")}
    write_recipes(shop, folders)
    books, other = (serve("--recipes", str(folder), SVC_ALLOWED_HOSTS="127.0.0.1") for folder in folders.values())
    with in_front(shop, (nginx, haproxy), (books, other)) as urls:
        for url, name in product(urls.values(), folders):
            assert {ask(url, name).status_code for _ in range(20)} == {200}, (url, name)
            assert ask(url, name).json()["recipe"] == name
        for path in ("/", "/v1/recipes", "/v1/docs", "/v1/health", "/v1/metrics") if "nginx" in urls else ():
            through, direct = (httpx.get(base + path, verify=False) for base in (urls["nginx"], books.url))
            assert through.status_code == direct.status_code, path
            assert through.headers["content-type"] == direct.headers["content-type"], path
            assert "x-request-id" in through.headers, path
        assert books.ask("/v1/recipes/books-cold-start:recommend", {"user_id": "u1"})[0] == 404
        assert books.stop() == 0
        for url in urls.values():
            assert ask(url, "books").status_code in (502, 503)
            assert {ask(url, "books-cold-start").status_code for _ in range(20)} == {200}


@pytest.mark.parametrize("recipes", [("shop", "empty"), ("empty",)], ids=["one of two", "the only one"])
def test_a_recipe_without_a_model_does_not_affect_other_recipes(
    recipes: tuple[str, ...], shop: Shop, serve: Callable[..., Server], artifact: bytes
) -> None:
    """Requests for a recipe without a model get the 503 of svc, and requests for the other recipe get 200.

    This holds even if no process is ready.
    """
    shop.give(artifact)
    write_recipes(shop, dict.fromkeys(recipes, shop.folder))
    servers = [serve(SVC_ALLOWED_HOSTS="127.0.0.1") for _ in range(2)]
    with in_front(shop, (nginx_replicas, haproxy_replicas, nginx, haproxy), servers) as urls:
        time.sleep(CHECKED_AFTER_S)
        for url in urls.values():
            for _ in range(12):
                refused = ask(url, "empty")
                assert (refused.status_code, refused.json()["code"]) == (503, "RECIPE_UNAVAILABLE"), refused.text
                assert {ask(url, name).status_code for name in recipes if name != "empty" for _ in range(5)} <= {200}


def test_every_request_is_answered_after_a_replica_has_ended(
    shop: Shop, serve: Callable[..., Server], artifact: bytes
) -> None:
    """Every request gets 200 while both replicas run and after one of them has ended."""
    shop.give(artifact)
    write_recipes(shop, {"shop": shop.folder})
    servers = [serve(SVC_ALLOWED_HOSTS="127.0.0.1") for _ in range(2)]
    with in_front(shop, (nginx_replicas, haproxy_replicas), servers) as urls:
        for url in urls.values():
            assert {ask(url, "shop").status_code for _ in range(20)} == {200}
            assert httpx.get(f"{url}/v1/recipes", verify=False).status_code == 200
        assert servers[0].stop() == 0
        for url in urls.values():
            assert {ask(url, "shop").status_code for _ in range(20)} == {200}


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_terminates_tls_passes_request_ids_and_hides_metrics(
    shop: Shop, serve: Callable[..., Server], artifact: bytes
) -> None:
    """nginx terminates TLS, passes valid request ids and `/v1/health`, and answers 404 for `/v1/metrics`.

    It redirects HTTP to HTTPS.
    """
    shop.give(artifact)
    shop.recipe.write_text(shop.recipe.read_text().replace("path: ", f"path: {shop.folder}/"))
    server = serve(SVC_ALLOWED_HOSTS="127.0.0.1", SVC_METRICS_ENABLED="1")
    ports = {"80": free_port(), "443": free_port(), "8080": int(server.url.rpartition(":")[2])}
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(shop.folder / "svc.key")
    issued.cert_chain_pems[0].write_to_path(shop.folder / "svc.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with running_process(nginx(shop.folder, ports, "single.conf"), ports["443"]):
        url = f"https://127.0.0.1:{ports['443']}"
        with httpx.Client(base_url=url, verify=context) as client:
            answer = client.post(
                "/v1/recipes/shop:recommend", json={"user_id": "u1"}, headers={"X-Request-ID": "mine-1"}
            )
            assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine-1")
            made = client.get("/v1/health", headers={"X-Request-ID": "not a good one"})
            assert made.status_code == 200
            assert re.fullmatch("[0-9a-f]{32}", made.headers["x-request-id"])
            assert client.get("/v1/metrics").status_code == 404
        moved = httpx.get(f"http://127.0.0.1:{ports['80']}/v1/health", verify=False)
        assert (moved.status_code, moved.headers["location"]) == (301, "https://127.0.0.1/v1/health")
