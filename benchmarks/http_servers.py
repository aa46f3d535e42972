"""The servers that `http` measures svc against, each run as a process of its own.

`floor PORT BYTES` is a bare ASGI application on hypercorn's trio worker: it reads the body and answers BYTES bytes.
`fastapi PORT FOLDER` is what one would write instead: FastAPI on uvicorn with uvloop and httptools, calling irspack
for each request in a sync handler.
`trivial PORT FOLDER` is FastAPI on the same stack that recommends nothing: it validates the body, looks up the user and
returns ten fixed items. Nobody's framework answers faster than that here.
"""

import pickle
import sys
from pathlib import Path
from typing import Any


def floor(port: int, size: int) -> None:
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


def fastapi(port: int, folder: Path) -> None:
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


def trivial(port: int, folder: Path) -> None:
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
        floor(int(port), int(argument))
    else:
        {"fastapi": fastapi, "trivial": trivial}[kind](int(port), Path(argument))
