"""A plain request passes through the server's packages in the order that docs/code.md documents."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import pytest
import trio

from svc.settings import Settings
from tests.serving.client import RECOMMEND, serving
from tests.serving.sockets import listening

pytestmark = pytest.mark.anyio
ROOMS = ("svc.serving.transport", "svc.serving.api", "svc.serving.models", "svc.asking", "svc.model")
"""Packages in the order in which a request passes them. Packages that all of them use, such as logs, are left out."""
MOST_STEPS = 7
QUESTIONS = {
    "cost_class",
    "Cost.is_expensive",
    "Application.late_s",
    "Application.is_leaving",
    "Registry.get",
    "Registry.require_served",
    "Entry.require_fresh",
    "Lane.wait_s",
    "Lane.expected_wait_s",
    "Lane.is_free_of_singles",
    "Policy.has_rules",
    "Policy.timed",
    "UserFields.varies",
    "ItemsRequest.filters",
    "plans_long",
    "cost_of",
    "costs_of",
    "intersect",
    "Ranking.from_place",
}
"""Calls that only read state or cut a page. They pass on neither the request nor its results."""
PAGE = (Path(__file__).parents[2] / "docs" / "code.md").read_text(encoding="utf-8")
BODY = b'{"user_id": "u3", "limit": 10}'
REQUEST = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (RECOMMEND.encode(), len(BODY), BODY)


def part(room: int) -> str:
    """Return the name of a package as docs/code.md writes it."""
    return ROOMS[room].rpartition(".")[2]


def documented_steps() -> list[tuple[str, str, str]]:
    """Return the rows of the table of steps in docs/code.md: caller, called package, and function."""
    return re.findall(r"^\| \d \| (\w+) \| (\w+), `([\w.]+)` \|", PAGE, re.MULTILINE)


def room_of(frame: FrameType) -> int | None:
    """Return the number of the package that contains the running code."""
    module = frame.f_globals.get("__name__", "")
    return next((number for number, room in enumerate(ROOMS) if module.startswith(room + ".")), None)


class Crossings:
    """A function for `sys.setprofile` that records calls from one package into another, in order.

    A record has the caller, the called package and the function.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, str]] = []
        self._seen: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        room = room_of(frame)
        # A coroutine that continues after a wait counts as a call again, with the same frame.
        if event != "call" or room is None or frame in self._seen:
            return
        self._seen.append(frame)
        caller = frame.f_back
        while caller is not None and room_of(caller) is None:
            caller = caller.f_back
        came_from = None if caller is None else room_of(caller)
        if came_from is not None and came_from != room:
            self.calls.append((came_from, room, frame.f_code.co_qualname))


async def test_a_request_passes_between_packages_as_documented() -> None:
    """The calls from the first read byte to the last sent byte of a request are those of docs/code.md."""
    crossings = Crossings()
    async with (
        serving(Settings(cached_answers=0)) as (client, _),
        listening(client.app) as port,
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
    ):
        for profile in (*[None] * 20, crossings):  # enough calls to measure the model as cheap on a busy machine
            sys.setprofile(profile)
            try:
                await stream.send_all(REQUEST)
                answer = await stream.receive_some()
            finally:
                sys.setprofile(None)
            assert answer.startswith(b"HTTP/1.1 200 ")
    assert all(came_from < room for came_from, room, _ in crossings.calls), crossings.calls
    # A plan reads ids, histories and features of the model.
    steps = [call for call in crossings.calls if call[2] not in QUESTIONS and ROOMS[call[0]] != "svc.asking"]
    assert len(steps) <= MOST_STEPS, steps
    assert documented_steps() == [(part(came_from), part(room), name) for came_from, room, name in steps]
    counts = f"these {len(steps)} steps there are {len(crossings.calls) - len(steps)} calls"
    assert counts in " ".join(PAGE.split())
