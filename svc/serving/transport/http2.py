"""One connection of HTTP/2 without TLS. The package h2 interprets frames and keeps their state; the rest is here.

A few frames are interpreted in each turn of the event loop, and a client that sends more control frames than any
client needs is told to go away: frames cost the server much more than their bytes. Priorities are ignored, as RFC 9113,
5.3.2 allows.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from svc.errors import ApiError
from svc.serving.transport.http1 import http_date
from svc.serving.transport.http2_exchange import Exchange, head_of
from svc.serving.transport.http2_frames import ControlFrames, Frame, FrameReader, FrameTooLong
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S, ClientGone, Head, Response
from svc.serving.transport.pacing import Rank
from svc.serving.transport.shared import Shared, next_bytes

FRAMES_A_TURN = 4
"""A frame with a head is as dear as so many others."""
FRAMES_OF_AN_ANSWER, BYTES_OF_A_FRAME = 8, 512
"""Control frames that an answer earns its client, and bytes for each further one: clients open windows as they read."""
CONCURRENT_REQUESTS = 100
MAX_FIELDS_BYTES = 1 << 14
"""The largest head, with 32 bytes added for each field: a frame may repeat one compressed field thousands of times (RFC
9113, 10.5.1)."""
_ENDINGS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class _TooManyFrames(Exception):
    """The client sends more control frames than it may."""


class Http2Connection:
    """Reads frames from a socket, has their requests answered side by side, and returns when either side has ended."""

    def __init__(self, connected: socket.socket, client: str, shared: Shared) -> None:
        self._socket = connected
        self._client = client
        self._shared = shared
        self._frames = FrameReader()
        self._control = ControlFrames(trio.current_time())
        self._rank = Rank.NEWCOMER
        self._exchanges: dict[int, Exchange] = {}
        self._opened = trio.Event()
        self._sending = trio.Lock()
        self._is_stuck = self._is_over = False
        self._reading = trio.CancelScope()
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: CONCURRENT_REQUESTS,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_FIELDS_BYTES,
            },
        )
        self._h2.decoder.max_header_list_size = MAX_FIELDS_BYTES

    async def run(self, opening: bytes) -> None:
        """Serve a connection that began with `opening` to its end. Requests in progress learn that the client left."""
        self._h2.initiate_connection()
        self._rest()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                with suppress(*_ENDINGS):
                    await self._serve(opening)
            finally:
                self._is_over = True
                self._shared.idle.pop(self._socket, None)
                for exchange in self._exchanges.values():
                    exchange.leave()
                self._open_windows()

    async def _serve(self, opening: bytes) -> None:
        error = ErrorCodes.NO_ERROR
        with self._reading:
            try:
                await self._read(opening)
            except _TooManyFrames:
                error = ErrorCodes.ENHANCE_YOUR_CALM
            except FrameTooLong:
                error = ErrorCodes.FRAME_SIZE_ERROR
            except ProtocolError:
                await self._flush()  # h2 has written the GOAWAY that says what was wrong
                return
        self._h2.close_connection(error)
        await self._flush()

    async def _read(self, data: bytes) -> None:
        """Interpret what comes until the client ends. Raises what ends the connection."""
        while data:
            self._frames.feed(data)
            del data  # an idle connection keeps nothing of what it has sent
            while await self._take_frames():
                pass
            data = await next_bytes(self._socket)

    async def _take_frames(self) -> bool:
        """Interpret a few frames when their turn has come; True when there may be more."""
        await self._shared.turns.enter(self._rank)
        self._rank = Rank.GOING_ON
        count = 0
        while count < FRAMES_A_TURN and (frame := self._frames.next()) is not None:
            self._take(frame)
            count += FRAMES_A_TURN if frame.is_head else 1
        await self._flush()
        return count >= FRAMES_A_TURN

    def _take(self, frame: Frame) -> None:
        if frame.is_control and not self._control.admit(trio.current_time()):
            raise _TooManyFrames
        for event in self._h2.receive_data(frame.raw):
            self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event)
            case DataReceived():
                self._feed(event.stream_id or 0, event.data or b"", event.flow_controlled_length or 0)
            case StreamEnded() if exchange := self._exchanges.get(event.stream_id or 0):
                exchange.end()
            case StreamReset() if exchange := self._exchanges.get(event.stream_id):
                exchange.leave()
                self._open_windows()
            case WindowUpdated() | RemoteSettingsChanged():
                self._open_windows()
            case ConnectionTerminated():
                raise trio.ClosedResourceError

    def _feed(self, stream_id: int, data: bytes, size: int) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is None:  # it is answered already
            self._h2.acknowledge_received_data(size, stream_id)
        else:
            exchange.feed(data, size)

    def _open_windows(self) -> None:
        """Wake the answers that wait for permission to send."""
        self._opened.set()
        self._opened = trio.Event()

    def _rest(self) -> None:
        """Nothing is answered: the connection waits, or ends with the server."""
        if self._is_over:
            return
        if self._shared.ending or self._shared.application.is_leaving:
            self._reading.cancel()
        else:
            self._shared.idle[self._socket] = trio.current_time()

    def _begin(self, event: RequestReceived) -> None:
        stream_id = event.stream_id or 0
        self._shared.idle.pop(self._socket, None)

        async def taken(size: int) -> None:
            self._h2.acknowledge_received_data(size, stream_id)
            await self._flush()

        try:
            head, refusal = head_of(event.headers or []), None
        except ApiError as error:
            head, refusal = Head("GET", b"/", ()), error
        exchange = self._exchanges[stream_id] = Exchange(head, self._client, taken)
        self._nursery.start_soon(self._answer, stream_id, exchange, refusal)

    async def _answer(self, stream_id: int, exchange: Exchange, refusal: ApiError | None) -> None:
        try:
            application, turns = self._shared.application, self._shared.turns
            exchange.late_s = application.late_s(exchange, turns.expected_wait_s(Rank.KNOWN))
            await turns.enter(Rank.REFUSED if exchange.late_s else Rank.KNOWN)
            response = application.refused(refusal) if refusal else await application(exchange)
            with suppress(ProtocolError, ClientGone, *_ENDINGS):
                if response is not None:
                    await self._send_in_time(stream_id, exchange, response)
                await self._finish(stream_id, exchange)
        finally:
            self._exchanges.pop(stream_id, None)
            if not self._exchanges:
                self._rest()

    async def _finish(self, stream_id: int, exchange: Exchange) -> None:
        """Return the flow-control credit of body bytes that no handler read, so that the client may send as much."""
        if self._is_over:
            return
        self._rank = Rank.KNOWN
        del self._exchanges[stream_id]
        self._h2.acknowledge_received_data(exchange.waiting, stream_id)
        if not exchange.ended and not exchange.is_gone:  # it need not send the rest of its body (RFC 9113, 8.1)
            self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        await self._flush()

    async def _send_in_time(self, stream_id: int, exchange: Exchange, response: Response) -> None:
        """A client may take bytes and still never open the flow-control window: then the connection ends."""
        with trio.move_on_after(self._shared.limits.unread_s + len(response.body) / SLOWEST_BYTES_PER_S):
            await self._send(stream_id, exchange, response)
            return
        self._reading.cancel()

    async def _send(self, stream_id: int, exchange: Exchange, response: Response) -> None:
        left = memoryview(b"" if exchange.head.method == "HEAD" else response.body)
        if exchange.is_gone:
            raise ClientGone
        self._h2.send_headers(stream_id, _fields(response), end_stream=not left)
        self._control.earn(FRAMES_OF_AN_ANSWER)
        while left:
            opened, window = self._opened, self._h2.local_flow_control_window(stream_id)
            size = min(window, self._h2.max_outbound_frame_size, len(left))
            if size > 0:
                self._h2.send_data(stream_id, bytes(left[:size]), end_stream=size == len(left))
                left = left[size:]
                self._control.earn(size / BYTES_OF_A_FRAME)
                await self._flush()
            else:
                await self._flush()
                await opened.wait()
            if exchange.is_gone:
                raise ClientGone
        await self._flush()

    async def _flush(self) -> None:
        """Send what h2 has written. Raises OSError, and BrokenResourceError of a client that does not read."""
        async with self._sending:
            data = self._h2.data_to_send()
            if not data:
                return
            if not self._is_stuck:
                with trio.move_on_after(self._shared.limits.unread_s + len(data) / SLOWEST_BYTES_PER_S):
                    await self._send_all(data)
                    return
        self._is_stuck = True
        self._reading.cancel()
        raise trio.BrokenResourceError("the client does not take its answer")

    async def _send_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)


def _fields(response: Response) -> list[tuple[bytes, bytes]]:
    length = [] if response.status == 204 else [(b"content-length", b"%d" % len(response.body))]
    return [
        (b":status", b"%d" % response.status),
        (b"content-type", response.content_type),
        *length,
        *response.headers,
        (b"date", http_date(int(time.time()))),
    ]
