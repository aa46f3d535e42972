"""The ASGI application: the verbs and probes in front, quart behind, one gate around all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import trio
from pydantic_core import to_json

from svc.serving.bodies import ClientGone
from svc.serving.gate import Call, Gate, Reply, Scope, Send, error_reply, needs_key
from svc.serving.limits import Receive
from svc.serving.probes import PROBES
from svc.serving.routes import FAILURE, build_routes
from svc.serving.state import ServerState
from svc.serving.verbs import PREFIX, Verbs, target

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def build_app(state: ServerState) -> Application:
    """The application that hypercorn serves."""
    return Front(state)


class Front:
    """Routes a request to the verbs or to quart, and turns what they raise into error bodies."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._gate = Gate(state)
        self._verbs = Verbs(state, self._gate)
        self._behind: Any = build_routes(state)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(Call(scope, receive, send))
        elif scope["type"] == "lifespan":
            await self._behind(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _http(self, call: Call) -> None:
        try:
            reply = self._gate.admit(call) or await self._answer(call)
        except ClientGone:
            return
        except Exception as error:
            reply = error_reply(call, error)
        await self._gate.reply(call, reply)

    async def _answer(self, call: Call) -> Reply:
        path: str = call.scope["path"]
        if path.startswith(PREFIX):
            verb = target(path)
            if verb is not None:
                return await self._verbs.answer(call, verb)
        if path in PROBES and call.scope["method"] == "GET":
            document, status = PROBES[path](self._state)
            return Reply(status, to_json(document), [])
        if needs_key(path):
            await self._gate.authenticate(call)
        return await self._from_behind(call)

    async def _from_behind(self, call: Call) -> Reply:
        """Run quart, which sees no body, and take its answer. Raises what a handler raised."""
        scope = dict(call.scope)
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self._behind(scope, _no_body(), send)
        if FAILURE in scope:
            raise scope[FAILURE]
        headers = dict(sent[0]["headers"])
        body = b"".join(message.get("body", b"") for message in sent[1:])
        headers.pop(b"content-length", None)  # the gate says it
        content_type = headers.pop(b"content-type", b"application/json")
        return Reply(sent[0]["status"], body, list(headers.items()), content_type)


def _no_body() -> Receive:
    """An ASGI receive of a request without a body, whose client stays."""
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        for message in messages:
            return message
        return await trio.sleep_forever()

    return receive
