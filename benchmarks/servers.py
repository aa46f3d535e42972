"""The servers that benchmarks ask, wrk, which asks them, and probes of `/v1/health`.

`floor PORT BYTES` is a bare ASGI application on hypercorn's trio worker: it reads the body and answers BYTES bytes.
`fastapi PORT FOLDER` is what one would write instead: FastAPI on uvicorn with uvloop and httptools, calling irspack
for each request in a sync handler.
`trivial PORT FOLDER` is FastAPI on the same stack that recommends nothing: it validates the body, looks up the user and
returns ten fixed items. Nobody's framework answers faster than that here.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from benchmarks.common import Shape, ids, interactions
from svc.artifact import layout
from svc.model.codec import encode
from svc.model.load_model import running_irspack_version
from svc.model.model import Model

KEY = "11" * 32
ENV = {
    "SVC_SIGNING_KEYS": f"k:{KEY}",
    "SVC_LOG_LEVEL": "warning",
    "SVC_MAX_PAYLOAD_BYTES": "2GiB",
    "OPENBLAS_NUM_THREADS": "1",
    "SVC_CACHED_ANSWERS": "0",
}
RECOMMEND = "/v1/recipes/m:recommend"
START_S = 120.0
MANY_ITEMS = 200_000
"""From here on a model is trained for one epoch only."""
TICKS = os.sysconf("SC_CLK_TCK")
Address = tuple[str, int]


class Load(NamedTuple):
    """What wrk measured: requests, and those a second, the 99th percentile in milliseconds, answers other than 2xx."""

    requests: int
    rate: float
    p99_ms: float
    failed: int


class Running(NamedTuple):
    """A server process and the URL that is asked."""

    url: str
    pid: int

    def asked(self, path: str) -> "Running":
        return Running(self.url + path, self.pid)

    def cpu_s(self) -> float:
        """User and system time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def prepare(shape: Shape, folder: Path) -> None:
    """Train a model of this shape; write it as an artifact with its recipe, and pickled for irspack."""
    from irspack import IALSRecommender

    from svc.training.fitting.export import assemble, to_scorer

    matrix = interactions(shape)
    epochs = 4 if shape.n_items < MANY_ITEMS else 1
    recommender = IALSRecommender(
        matrix, n_components=shape.components, alpha0=0.05, reg=0.002, train_epochs=epochs
    ).learn()
    users, items = ids("u", matrix.shape[0]), ids("i", matrix.shape[1])
    with (folder / "irspack.pickle").open("wb") as file:
        pickle.dump((recommender, users, items), file)
    model = assemble(to_scorer(recommender, "IALSRecommender"), user_ids=users, item_ids=items, X=matrix, features=None)
    write_served(model, "IALSRecommender", folder)


def write_model(model: Model, best_class: str, path: Path) -> None:
    """Write the model as an artifact that the servers of the benchmarks take."""
    header = {
        "irspack_version": running_irspack_version(),
        "best_class": best_class,
        "algorithms": [best_class],
        "metric": "ndcg",
        "cutoff": 20,
    }
    with path.open("wb") as out:
        layout.write(out, kid="k", key=bytes.fromhex(KEY), header=header, payload=encode(model))


def write_served(model: Model, best_class: str, folder: Path) -> None:
    """Write the model as the artifact of the recipe `m` in `folder`, which a server can be pointed at."""
    write_model(model, best_class, folder / "m.svc")
    recipe = {
        "name": "m",
        "source": {"type": "csv", "path": "none.csv"},
        "schema": {"user_column": "u", "item_column": "i"},
        "training": {"algorithms": [best_class]},
        "output": {"path": "../m.svc", "versioning": "always_overwrite"},
    }
    (folder / "recipes").mkdir()
    (folder / "recipes" / "m.yaml").write_text(json.dumps(recipe))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, ready: str, **env: str) -> Iterator[Running]:
    """A server process that answers at the path `ready`."""
    process = subprocess.Popen(command, env={**os.environ, **ENV, **env}, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(url + ready, timeout=5).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command} does not answer") from None
                time.sleep(0.1)
        yield Running(url, process.pid)
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def floor(size: int) -> Iterator[Running]:
    """A bare ASGI application on the HTTP library that svc uses, with answers of `size` bytes."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.servers", "floor", str(port), str(size)]
    with running(command, port, "/") as server:
        yield server


def script(folder: Path, n_users: int, size: int = 0, pause_ms: int = 0) -> Path:
    """A wrk script that asks for random users: one a request, or `size` of them in a batch.

    Each connection rests for `pause_ms` on average before a request.
    """
    one = f"'{{\"user_id\":\"u' .. math.random(0, {n_users - 1}) .. '\"}}'"
    body = f"return wrk.format(nil, nil, nil, {one})"
    if size:
        body = (
            f"local t = {{}}; for i = 1, {size} do t[i] = {one} end; "
            "return wrk.format(nil, nil, nil, '{\"requests\":[' .. table.concat(t, ',') .. ']}')"
        )
    path = folder / f"load{size}-{pause_ms}.lua"
    lines = [
        'wrk.method = "POST"',
        'wrk.headers["Content-Type"] = "application/json"',
        f"request = function() {body} end",
    ]
    if pause_ms:
        lines.append(f"delay = function() return math.random(0, {2 * pause_ms}) end")
    path.write_text("\n".join(lines) + "\n")
    return path


def wrk(url: str, connections: int, seconds: int, lua: Path | None) -> list[str]:
    """The command of one load. Ends the program if wrk is missing."""
    if shutil.which("wrk") is None:
        sys.exit("this benchmark loads the server with wrk: apt-get install wrk")
    return ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", *(["-s", str(lua)] if lua else []), url]


def load(url: str, connections: int, seconds: int, lua: Path | None) -> Load:
    """Run one load to its end. Ends the program with the words of wrk if it fails, and if no request was answered."""
    done = subprocess.run(wrk(url, connections, seconds, lua), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(done.args)}: {done.stderr or done.returncode}")
    found = measured(done.stdout)
    if not found.requests:
        sys.exit(f"{' '.join(done.args)}: no answer within {seconds} s, so nothing can be compared")
    return found


def measured(text: str) -> Load:
    """What wrk says of a load."""
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    assert requests
    assert rate
    assert p99
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}[p99[2]]
    return Load(int(requests[1]), float(rate[1]), float(p99[1]) * scale, int(failed[1]) if failed else 0)


def costed(server: Running, connections: int, seconds: int, lua: Path) -> tuple[Load, float]:
    """A load, and the seconds of processor time that the server used for each of its requests."""
    before = server.cpu_s()
    taken = load(server.url, connections, seconds, lua)
    return taken, (server.cpu_s() - before) / taken.requests


def running_svc(stack: contextlib.ExitStack, folder: Path, **env: str) -> Running:
    port = free_port()
    command = [sys.executable, "-m", "svc", "serve", "--recipes", str(folder / "recipes"), "--port", str(port)]
    return stack.enter_context(running(command, port, "/v1/health", **env))


def address_of(url: str) -> Address:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1e3 if seconds else float("nan")


HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROBE_S = 0.01
PATIENCE_S = 60.0


def connect(address: Address) -> socket.socket:
    client = socket.create_connection(address, timeout=PATIENCE_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


@contextmanager
def probing(address: Address) -> Iterator[list[float]]:
    """The seconds that each probe took while the block ran, known after it."""
    context = multiprocessing.get_context("spawn")
    over, (here, there) = context.Event(), context.Pipe()
    process = context.Process(target=_probe, args=(address, over.is_set, there))
    process.start()
    there.close()  # so that the end of the process is the end of what it says
    seconds: list[float] = []
    try:
        here.recv()
        yield seconds
        over.set()
        seconds += here.recv()
    finally:
        process.kill()
        process.join()


def _probe(address: Address, over: Callable[[], bool], results: Connection) -> None:
    gc.disable()
    seconds = []
    with connect(address) as client, client.makefile("rb") as answers:
        results.send("ready")
        while not over():
            began = time.perf_counter()
            client.sendall(HEALTH)
            _read(answers)
            seconds.append(time.perf_counter() - began)
            time.sleep(PROBE_S)
    results.send(seconds)


def _read(answers: BinaryIO) -> None:
    """Read one answer, in however many pieces it comes."""
    assert answers.readline().startswith(b"HTTP/1.1 200")
    length = 0
    while line := answers.readline().strip():
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    assert len(answers.read(length)) == length


def serve_floor(port: int, size: int) -> None:
    import hypercorn.trio
    import trio
    from hypercorn.config import Config

    body = b"x" * size
    headers = [(b"content-type", b"application/json"), (b"content-length", str(size).encode())]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                message = await receive()
                await send({"type": message["type"] + ".complete"})
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = None
    config.keep_alive_max_requests = sys.maxsize
    config.include_server_header = False
    trio.run(hypercorn.trio.serve, app, config)


def serve_fastapi(port: int, folder: Path) -> None:
    import numpy as np
    import uvicorn
    from fastapi import FastAPI, HTTPException
    from pydantic import BaseModel

    with (folder / "irspack.pickle").open("rb") as file:
        recommender, user_ids, item_ids = pickle.load(file)
    users = {user_id: row for row, user_id in enumerate(user_ids)}
    app = FastAPI()

    class Request(BaseModel):
        user_id: str
        limit: int = 10

    @app.post("/recommend")
    def recommend(request: Request) -> dict[str, Any]:
        row = users.get(request.user_id)
        if row is None:
            raise HTTPException(404)
        scores = recommender.get_score_remove_seen(np.array([row]))[0]
        best = np.argpartition(scores, -request.limit)[-request.limit :]
        best = best[np.argsort(-scores[best])]
        return {"items": [{"item_id": item_ids[item], "score": float(scores[item])} for item in best]}

    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False, log_level="error")


def serve_trivial(port: int, folder: Path) -> None:
    import uvicorn
    from fastapi import FastAPI, HTTPException
    from pydantic import BaseModel, Field

    with (folder / "irspack.pickle").open("rb") as file:
        _, user_ids, item_ids = pickle.load(file)
    users = set(user_ids)
    items = [{"item_id": item, "score": 0.123456789 + place} for place, item in enumerate(item_ids[:10])]
    app = FastAPI()

    class Request(BaseModel):
        user_id: str = Field(min_length=1, max_length=256)
        limit: int = Field(10, ge=1, le=1000)

    @app.post("/recommend")
    async def recommend(request: Request) -> dict[str, Any]:
        if request.user_id not in users:
            raise HTTPException(404)
        return {"request_id": "0" * 12, "recipe": "m", "model_version": "sha256:" + "0" * 64, "items": items}

    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False, log_level="error")


if __name__ == "__main__":
    kind, port, argument = sys.argv[1:]
    if kind == "floor":
        serve_floor(int(port), int(argument))
    else:
        {"fastapi": serve_fastapi, "trivial": serve_trivial}[kind](int(port), Path(argument))
