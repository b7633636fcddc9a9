"""A connection to NATS that bypasses queues of nats-py in both directions.

Deliveries are passed to handlers directly. nats-py would queue each delivery and wake a task for it, which costs more
than the handler.

Reader of messages in the event-loop turn in which their bytes arrive.

nats-py reads in a task, which each arrival wakes in another turn, and finds each message by patterns. Most arrivals are
successive messages without headers for Omnibus's handlers, which are read here. After any other input, the bytes are
passed to nats-py until it has read all of them.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from omnibus.bus import Delivery, Handler
from omnibus.bus.permissions import inbox_prefix
from omnibus.concurrency import finish_within, keep_cancellation
from omnibus.errors import BadRequest, BusUnavailable, Fatal, ProtocolError
from omnibus.metrics import PROCESS
from omnibus.settings import BusSettings
from omnibus.urls import redact_url, split_urls

log = logging.getLogger(__name__)

_MESSAGE = b"MSG "
_LINE_END = b"\r\n"
#: Most bytes of a message's first line, as in nats-py, which rejects a longer one.
_MAX_LINE_BYTES = 4096


class MessageReader:
    """Reads the bytes for ``stream``, which nats-py parses with ``parser``.

    ``stats`` are nats-py's counters of received messages and bytes.
    """

    def __init__(
        self, stream: asyncio.StreamReader, parser: Parser, handlers: Mapping[int, Handler], stats: dict[str, int]
    ) -> None:
        self._parser = parser
        self._handlers = handlers
        self._stats = stats
        self._unread: Any = stream._buffer  # type: ignore[attr-defined]
        self._pass_on = stream.feed_data
        self._partial = bytearray()  # of the next message
        self._missing = 0  # at least so many bytes until it is complete

    def feed_data(self, data: bytes) -> None:
        """Deliver the messages that are complete now. Raises nothing."""
        parser = self._parser
        if self._unread or parser.buf or parser.state != AWAITING_CONTROL_LINE:
            self._pass_on(data)  # after the bytes that nats-py has not read yet
            return
        if self._partial:
            self._partial += data
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = bytes(self._partial)
            self._partial.clear()
        at = self._deliver_messages(data)
        if at < len(data):
            self._keep_rest(data[at:] if at else data)

    def _deliver_messages(self, data: bytes) -> int:
        """Deliver complete messages from the start; returns the offset of the rest."""
        at, stats, handlers = 0, self._stats, self._handlers
        while data.startswith(_MESSAGE, at):
            line_end = data.find(_LINE_END, at)
            if line_end < 0:
                break
            try:
                subject, number, *reply, size = data[at + 4 : line_end].split()
                begin, end = line_end + 2, line_end + 2 + int(size)
                handler = handlers.get(int(number))
            except ValueError:
                break
            if handler is None or end + 2 > len(data):
                break
            at = end + 2
            body = data[begin:end]
            stats["in_msgs"] += 1
            stats["in_bytes"] += len(body)
            try:
                handler(Delivery(subject.decode(), body, reply[0].decode() if reply else ""))
            except Exception:  # the reader must survive every message
                log.exception("handler of %s failed", subject.decode())
        return at

    def _keep_rest(self, rest: bytes) -> None:
        """Keep an incomplete message until its rest arrives; pass other input to nats-py."""
        self._missing = self._missing_bytes(rest)
        if self._missing > 0:
            self._partial += rest
        else:
            self._pass_on(rest)

    def _missing_bytes(self, rest: bytes) -> int:
        """Return the least number of missing bytes of an incomplete message.

        0 if it is not a message for a handler of Omnibus.
        """
        line_end = rest.find(_LINE_END)
        if line_end < 0:
            return int(len(rest) < _MAX_LINE_BYTES and rest[: len(_MESSAGE)] == _MESSAGE[: len(rest)])
        if not rest.startswith(_MESSAGE):
            return 0
        try:
            _, number, *_, size = rest[4:line_end].split()
            has_handler = int(number) in self._handlers
            return line_end + 2 + int(size) + 2 - len(rest) if has_handler else 0
        except ValueError:  # nats-py reports it
            return 0


#: Bytes that may wait for the socket before publishing is rejected.
MAX_PENDING_BYTES = 64 << 20
MIN_SERVER_VERSION = (2, 12)
#: Seconds between two pings, and the most unanswered ones: a machine that loses power does not close its connections.
PING_INTERVAL_SECONDS, MAX_OUTSTANDING_PINGS = 2, 2
#: Most unwritten bytes of the socket for a direct write; with more, nats-py's flusher waits for it.
_MAX_UNWRITTEN_BYTES = 64 << 10
#: Seconds in which commands of successive turns are joined: each write wakes the server and its receivers.
JOIN_SECONDS = 0.001
#: Longest wait of a lazy command for another one to be sent with.
LAZY_COMMAND_SECONDS = 0.02
#: Longest time for closing a connection that was not established.
_CLOSE_SECONDS = 1.0
_NO_RESPONDERS = b" 503"
_CLOSING_STATES = frozenset({Client.CLOSED, Client.DRAINING_SUBS, Client.DRAINING_PUBS})


class NatsConnection(Client):
    """nats-py's client, with direct calls from parser to handler, per subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: dict[int, Handler] = {}
        self.on_reconnect: Callable[[], None] = lambda: None
        self.last_problem: Exception | None = None
        self.refusal: Exception | None = None  # by a server, of this user; a closed connection follows
        self._flushes = False  # a flush is scheduled
        self._grows = False  # something was queued in this turn of the event loop
        self._flush_by = 0.0  # of ``monotonic``
        self._before_flush: list[Callable[[], None]] = []
        self._lazy_flush: asyncio.TimerHandle | None = None

    @property
    def takes_commands(self) -> bool:
        """True unless the connection is closed or closing."""
        return self._status not in _CLOSING_STATES  # one check in place of two properties: publishing is frequent

    @property
    def is_clustered(self) -> bool:
        """True if there are other servers than the connected one."""
        return len(self._server_pool) > 1 or "cluster" in self._server_info

    async def request(self, *arguments: Any, **options: Any) -> Msg:
        return await keep_cancellation(super().request(*arguments, **options))

    async def _process_pong(self) -> None:
        """Handle the answer to a ping. nats-py stops reading if the ping's sender does not wait any more."""
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
        else:
            await super()._process_pong()

    async def notify_reconnected(self) -> None:
        self.last_problem = self.refusal = None
        self.on_reconnect()

    async def notify_problem(self, error: Exception) -> None:
        """Log and keep an error of a server or its connection.

        ``connect`` itself retries silently.
        """
        if repr(error) != repr(self.last_problem):  # five attempts a second would repeat one line in the log
            log.warning("nats: %s", error or type(error).__name__)
        self.last_problem = error
        if _is_refusal(error):
            self.refusal = error

    async def _read_loop(self) -> None:
        stream = getattr(self._transport, "_io_reader", None)  # a web socket has none
        if stream is not None:
            reader = MessageReader(stream, self._ps, self.handlers, self.stats)
            stream.feed_data = reader.feed_data
        await super()._read_loop()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self.handlers.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        is_refused = bool(headers) and not data and _NO_RESPONDERS in headers[:16]
        parsed_headers = await self._process_headers(headers) if headers and not is_refused else None
        try:
            handler(Delivery(subject.decode(), data, reply.decode(), parsed_headers, is_refused))
        except Exception:  # the reader must survive every message
            log.exception("handler of %s failed", subject.decode())

    def send_command(self, command: bytes, lazy: bool = False) -> None:
        """Queue protocol bytes; they are sent with those of this turn and the next ones.

        ``lazy`` bytes do not cause a write: they are sent with the next ones, or after ``LAZY_COMMAND_SECONDS``.
        """
        self._pending.append(command)
        self._pending_data_size += len(command)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(command)
        if lazy:
            if self._lazy_flush is None:  # an earlier flush leaves the timer: one for each request would cost more
                self._lazy_flush = asyncio.get_running_loop().call_later(LAZY_COMMAND_SECONDS, self._flush_lazy)
        else:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Send the queued bytes soon: once a turn adds no more, or after ``JOIN_SECONDS``."""
        self._grows = True
        if not self._flushes:
            self._flushes = True
            self._flush_by = monotonic() + JOIN_SECONDS
            asyncio.get_running_loop().call_soon(self._end_turn)

    def call_before_flush(self, publish: Callable[[], None]) -> None:
        """Call ``publish`` before pending bytes are sent; its bytes are sent with them."""
        self._before_flush.append(publish)
        self.flush_soon()

    def _end_turn(self) -> None:
        if self._grows and monotonic() < self._flush_by:
            self._grows = False
            asyncio.get_running_loop().call_soon(self._end_turn)
        else:
            self._flush_pending_commands()

    def _flush_lazy(self) -> None:
        self._lazy_flush = None
        if not self._flushes:
            self._flush_pending_commands()

    def _flush_pending_commands(self) -> None:
        """Write the pending bytes, or wake the flusher of nats-py.

        The flusher waits for a slow socket, and handles a lost one.
        """
        if self._before_flush:
            self._flushes = True  # no further flush is necessary
            before, self._before_flush = self._before_flush, []
            for publish in before:
                try:
                    publish()
                except Exception:  # other pending bytes must be sent
                    log.exception("messages were not sent")
        self._flushes = False
        if not self._pending or not self.is_connected:
            return
        writer = getattr(self._transport, "_io_writer", None)  # a web socket has none
        if writer is not None and _takes_more(writer.transport):
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            writer.transport.writelines(pending)
        elif self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())


def _takes_more(transport: asyncio.WriteTransport) -> bool:
    return not transport.is_closing() and transport.get_write_buffer_size() <= _MAX_UNWRITTEN_BYTES


def encode_headers(headers: Mapping[str, str] | None) -> bytes:
    """Encode headers as the server counts them. Raises ``ValueError`` for a value with a line break."""
    if headers is None:
        return b""
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    if "\n" in lines.replace("\r\n", ""):
        raise ValueError("a header value cannot contain a line break")
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def encode_publish(subject: str, data: bytes, reply: str, head: bytes) -> bytes:
    """Return PUB or HPUB with its payload; ``head`` is encoded headers, or empty.

    Parts of subjects come from messages, so blanks and line breaks in them are rejected: they would become protocol.
    """
    subjects = f"{subject}{reply}"
    if " " in subjects or not subjects.isprintable():
        raise ProtocolError(f"{subject[:80]!r} or {reply[:80]!r} is not a subject")
    if not head:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(data), data)
    sizes = (len(head), len(head) + len(data))
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject.encode(), reply.encode(), *sizes, head, data)


class BusRefused(BusUnavailable):
    """The server rejects user and password. Other processes may retry, because an operator may change them."""


async def open_connection(settings: BusSettings, name: str) -> NatsConnection:
    """Connect within ``settings.connect_timeout``.

    Raises ``BusUnavailable`` with the URL and the last error, ``BusRefused`` for a wrong password, and ``BadRequest``
    for files of TLS that cannot be read.
    Raises ``Fatal`` for a server that is too old or accepts only smaller messages.
    """
    connection = NatsConnection()
    urls = split_urls(settings.url)
    options = _credentials(settings, urls[0])
    if settings.tls_ca:
        options["tls"] = _tls_context(settings)
    try:
        connecting = connection.connect(
            urls,
            name=name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]
            ping_interval=PING_INTERVAL_SECONDS,
            max_outstanding_pings=MAX_OUTSTANDING_PINGS,
            pending_size=MAX_PENDING_BYTES,
            allow_reconnect=True,
            error_cb=connection.notify_problem,
            reconnected_cb=connection.notify_reconnected,
            inbox_prefix=inbox_prefix(settings.user).encode(),
            skip_subject_validation=True,
            **options,
        )
        # It retries forever, and drops a cancellation that arrives together with a server's refusal.
        await finish_within(settings.connect_timeout, connecting)
    except (TimeoutError, OSError, nats.errors.Error) as error:
        with contextlib.suppress(TimeoutError, OSError, nats.errors.Error):
            await finish_within(_CLOSE_SECONDS, connection.close())
        problem = connection.refusal or connection.last_problem or error
        kind = BusRefused if _is_refusal(problem) else BusUnavailable
        raise kind(_describe_failure(settings, problem)) from error
    if fault := _server_problem(connection, settings):
        await connection.close()
        raise Fatal(fault)
    _bind_metrics(connection)
    return connection


def _server_problem(connection: NatsConnection, settings: BusSettings) -> str:
    """Describe a requirement that the server does not meet; empty if it meets all."""
    version = connection.connected_server_version
    if (version.major, version.minor) < MIN_SERVER_VERSION:
        minimum = ".".join(map(str, MIN_SERVER_VERSION))
        return f"NATS server {version} is too old: Omnibus needs {minimum} or newer"
    if connection.max_payload < settings.max_payload:
        return (
            f"the NATS server accepts messages of at most {connection.max_payload} bytes (max_payload) and Omnibus "
            f"sends {settings.max_payload}: raise max_payload in its configuration, or lower OMNIBUS_BUS_MAX_PAYLOAD"
        )
    return ""


def _is_refusal(error: BaseException) -> bool:
    return "authorization" in str(error).lower()


def _describe_failure(settings: BusSettings, error: BaseException) -> str:
    url = redact_url(settings.url)
    if _is_refusal(error):
        client = f"user {settings.user!r}" if settings.user else "connections without a user"
        return f"the NATS server at {url} refuses {client}: check OMNIBUS_BUS_USER and OMNIBUS_BUS_PASSWORD"
    if isinstance(error, ssl.SSLError):
        return f"the certificate of the NATS server at {url} is not trusted: check OMNIBUS_BUS_TLS_CA ({error})"
    return f"no NATS server at {url}: {str(error) or 'timed out'}"


def _credentials(settings: BusSettings, url: str) -> dict[str, Any]:
    """Return user and password for all servers.

    They are also used for servers that other servers announce, whose addresses have none.
    """
    if settings.user:
        return {"user": settings.user, "password": settings.password}
    try:
        parts = urlsplit(url)
    except ValueError:  # connecting reports it
        return {}
    if parts.username is None:
        return {}
    if parts.password is None:
        return {"token": parts.username}
    return {"user": parts.username, "password": parts.password}


def _tls_context(settings: BusSettings) -> ssl.SSLContext:
    """Return the TLS context. Raises ``BadRequest`` for files that cannot be read."""
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(f"the files of OMNIBUS_BUS_TLS_CA, _CERT, _KEY cannot be used: {error}") from error
    return context


def _bind_metrics(connection: NatsConnection) -> None:
    """Bind the metrics of this process to this connection; a service has one."""
    counts = connection.stats
    PROCESS.bus.set_value(lambda: connection.is_connected)
    PROCESS.reconnects.set_value(lambda: counts["reconnects"])
    PROCESS.messages.set_values(lambda: {("in",): counts["in_msgs"], ("out",): counts["out_msgs"]})
    PROCESS.bytes.set_values(lambda: {("in",): counts["in_bytes"], ("out",): counts["out_bytes"]})
