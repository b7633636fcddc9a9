"""The relay of tests of clients reads what they send, and the table needs a test or a reason for each feature."""

import json
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.clients.features import FEATURES, read_declarations, read_examples
from tests.clients.traffic import ClientTraffic, SeenRequest, _read_frames, _read_requests
from tests.pages.clients import CLIENTS, DocumentedClient, describe_feature


class _Answering(BaseHTTPRequestHandler):
    """A server that answers 200, except to the path ``/v1/messages``."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(400 if self.path == "/v1/messages" else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(5)


def test_features_are_those_of_successful_requests(server_url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "u"}}
    with ClientTraffic(server_url) as traffic, httpx.Client(base_url=traffic.url) as client:
        assert not traffic.has_requests
        client.post("/v1/messages", json={"tools": [1]})
        client.post("/v1/chat/completions", json={"stream": True, "messages": [{"content": [part]}]})
        client.post("/api/chat", json={"format": "json", "stream": False})

    assert traffic.list_features() == {"chat", "stream", "image", "JSON"}


@pytest.mark.parametrize(
    ("path", "body", "features"),
    [
        ("/v1/responses", {"text": {"format": {"type": "text"}}}, {"chat"}),
        ("/v1/responses", {"text": {"format": {"type": "json_schema"}}}, {"chat", "JSON"}),
        ("/v1/chat/completions", {"tools": [{"type": "image"}]}, {"chat", "tools"}),
        ("/v1/chat/completions", {"modalities": ["text", "audio"]}, {"chat", "audio"}),
        ("/api/generate", {"images": ["a"]}, {"chat", "stream", "image"}),
        ("/v1/audio/speech", {}, {"audio"}),
        ("/v1/embeddings", {"input": "a"}, set()),
        ("/v1/realtime", {"events": [{"session": {"tools": [1]}}], "stream": True}, {"audio", "stream", "tools"}),
    ],
)
def test_a_request_has_the_features_of_its_body(path: str, body: dict[str, Any], features: set[str]) -> None:
    assert set(SeenRequest(path, body).list_features()) == features


def test_bodies_in_chunks_and_several_requests_are_read() -> None:
    chunked = b'POST /a?b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n3\r\n 1}\r\n0\r\n\r\n'

    requests = list(_read_requests(chunked + b"POST /c HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"))

    assert requests == [SeenRequest("/a", {"a": 1}), SeenRequest("/c", {})]


def make_frame(payload: bytes, first: int = 0x81) -> bytes:
    mask = b"\x01\x02\x03\x04"
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes([first]) + size + mask + bytes(each ^ mask[place % 4] for place, each in enumerate(payload))


def test_messages_of_websockets_are_read() -> None:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    texts = [json.dumps({"a": "b" * 300}).encode(), b"{}"]
    compressed = [(deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4] for text in texts]

    plain = make_frame(texts[0][:5], 0x01) + make_frame(b"ping", 0x89) + make_frame(texts[0][5:], 0x80)
    frames = [*_read_frames(plain), *_read_frames(b"".join(make_frame(each, 0xC1) for each in compressed))]

    assert frames == [texts[0], *texts]


def test_every_client_of_the_table_has_a_test() -> None:
    declarations = read_declarations()

    assert {client.name for client in CLIENTS} == set(declarations)
    assert all(features <= {*FEATURES} for features in declarations.values())
    assert all(example.client for example in read_examples() if example.language != "sh")


def test_a_feature_without_a_test_needs_a_reason() -> None:
    client = DocumentedClient("a", "#a", "", {"audio": "not in this API"})

    assert describe_feature(client, "chat", {"chat"}) == "yes"
    assert describe_feature(client, "audio", ()) == "not in this API"
    with pytest.raises(ValueError, match="a has no test and no reason for tools"):
        describe_feature(client, "tools", {"chat"})
