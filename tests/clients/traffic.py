"""A relay between clients and a gateway, which reads the requests."""

import json
import re
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_CHATS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate")
_REALTIME = "/v1/realtime"
_HEAD_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_PIECE_BYTES = 1 << 16
_IMAGE_PARTS, _AUDIO_PARTS = {"image_url", "input_image", "image"}, {"input_audio", "audio_url"}
_JOIN_SECONDS = 10.0
#: Bytes of the smallest masked frame, and of its mask.
_FRAME_BYTES, _MASK_BYTES = 6, 4


class SeenRequest(NamedTuple):
    """A request: its path, and its body if it is JSON."""

    path: str
    body: dict[str, Any]

    def list_features(self) -> Iterator[str]:
        """Yield the features that it uses."""
        parts = list(_dictionaries(self.body))
        kinds = {part.get("type") for part in parts if isinstance(part.get("type"), str)}
        if self.path in _CHATS:
            yield "chat"
        if self.path in (*_CHATS, _REALTIME):
            if self.body.get("stream", self.path.startswith("/api/")):
                yield "stream"
            if kinds & _IMAGE_PARTS or any(part.get("images") for part in parts):
                yield "image"
            if any(part.get("tools") for part in parts):
                yield "tools"
            if self._has_schema():
                yield "JSON"
        if self.path.startswith("/v1/images/"):
            yield "image"
        sounds = kinds & _AUDIO_PARTS or "audio" in (self.body.get("modalities") or ())
        if sounds or self.path.startswith(("/v1/audio/", _REALTIME)):
            yield "audio"

    def _has_schema(self) -> bool:
        formats = [self.body.get("response_format"), self.body.get("format")]
        formats += [(self.body.get(name) or {}).get("format") for name in ("text", "output_config")]
        return any(each and (not isinstance(each, dict) or each.get("type") != "text") for each in formats)


class ClientTraffic:
    """Relay to the gateway at ``url``. Use it as a context."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[tuple[bytearray, bytearray]] = []
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "ClientTraffic":
        self._start_thread(self._accept_clients)
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    @property
    def has_requests(self) -> bool:
        """True if a client has connected; a skipped test has none."""
        return bool(self._connections)

    def list_features(self) -> frozenset[str]:
        """Return the features of all requests with a successful response."""
        requests = [
            each
            for request_bytes, response_bytes in self._connections
            for each in _read_successful(request_bytes, response_bytes)
        ]
        return frozenset(feature for request in requests for feature in request.list_features())

    def _start_thread(self, function: Any, *args: Any) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept_clients(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            gateway = socket.create_connection(self._target)
            for each in (client, gateway):  # audio comes in small messages, which must not wait for each other
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request_bytes, response_bytes = bytearray(), bytearray()
            self._connections.append((request_bytes, response_bytes))
            self._start_thread(_relay_bytes, client, gateway, request_bytes)
            self._start_thread(_relay_bytes, gateway, client, response_bytes)


def _relay_bytes(source: socket.socket, target: socket.socket, record: bytearray) -> None:
    """Send bytes from ``source`` to ``target`` until one ends, then end both."""
    with suppress(OSError):
        while data := source.recv(_PIECE_BYTES):
            record += data
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _read_successful(request_bytes: bytearray, response_bytes: bytearray) -> Iterator[SeenRequest]:
    """Yield the requests of a connection whose response is successful. Responses have the order of requests."""
    statuses = [int(status) for status in _STATUS.findall(response_bytes) if int(status) != 100]
    for request, status in zip(_read_requests(bytes(request_bytes)), statuses, strict=False):
        if status < 300:
            yield request


def _read_requests(data: bytes) -> Iterator[SeenRequest]:
    while _HEAD_END in data:
        head, _, data = data.partition(_HEAD_END)
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        if "chunked" in headers.get("transfer-encoding", ""):
            body, data = _read_chunks(data)
        else:
            size = int(headers.get("content-length", 0))
            body, data = data[:size], data[size:]
        path = line.split()[1].partition("?")[0]
        if "upgrade" in headers:
            yield SeenRequest(path, {"stream": True, "events": [_read_object(text) for text in _read_frames(data)]})
            return
        yield SeenRequest(path, _read_object(body))


def _read_chunks(data: bytes) -> tuple[bytes, bytes]:
    """Return a body in chunks, and the rest of the data."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if not length:
            break
    return body, data


def _read_frames(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a client's WebSocket (RFC 6455), also compressed ones (RFC 7692)."""
    inflater, message, is_compressed = zlib.decompressobj(-zlib.MAX_WBITS), b"", False
    while len(data) >= _FRAME_BYTES:
        first, size = data[0], data[1] & 0x7F
        wide = {126: 2, 127: 8}.get(size, 0)
        size = int.from_bytes(data[2 : 2 + wide], "big") if wide else size
        begin = 2 + wide + _MASK_BYTES
        mask = data[begin - _MASK_BYTES : begin]
        payload = data[begin : begin + size]
        data = data[begin + size :]
        if first & 0x08:  # a control frame
            continue
        is_compressed = is_compressed or bool(first & 0x40)
        message += bytes(each ^ mask[place % _MASK_BYTES] for place, each in enumerate(payload))
        if first & 0x80:
            yield inflater.decompress(message + b"\x00\x00\xff\xff") if is_compressed else message
            message, is_compressed = b"", False


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in ``value`` that are not tools or formats."""
    if isinstance(value, dict):
        yield value
        for name, inner in value.items():
            if name not in ("tools", "response_format", "format", "text"):
                yield from _dictionaries(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _dictionaries(inner)
