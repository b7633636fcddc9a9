"""An ``Api`` over HTTPS or HTTP, in a thread of this process."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.kube import protobuf, yaml_text
from tests.kube.api import Api

CERTIFICATE = Path(__file__).with_name("cluster.test.pem")  # for 127.0.0.1, valid until 2125
TOKEN = "the token"


class Door:
    """HTTP layer of an ``Api``.

    ``refusals`` are the first answers, except to leases. ``tokens`` collects the tokens of requests. A request whose
    path contains an element of ``forbidden`` is denied.
    """

    def __init__(self, api: Api) -> None:
        self.api = api
        self.refusals: list[tuple[int, bytes]] = []
        self.tokens: set[str] = set()
        self.forbidden: set[str] = set()
        self._one = threading.Lock()

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        url, authorization = urlsplit(target), headers.get("authorization", "")
        self.tokens.add(authorization)
        if self.refusals and "/leases" not in url.path:
            return self.refusals.pop(0)
        if authorization != f"Bearer {TOKEN}":
            return 401, json.dumps({"message": "Unauthorized"}).encode()
        if any(part in url.path for part in self.forbidden):
            return 403, json.dumps({"message": f"{url.path} is forbidden"}).encode()
        with self._one:
            media = headers.get("content-type", "")
            status, document = self.api.answer(
                method, unquote(url.path), parse_qs(url.query), _read_body(body, media) if body else None, media
            )
        return status, json.dumps(document).encode()


def _read_body(body: bytes, media: str) -> Any:
    if body.startswith(protobuf.MAGIC):
        return protobuf.read_secret(body)
    return yaml_text.read_document(body) if media.endswith("yaml") else json.loads(body)


@contextmanager
def serve_door(door: Door, tls: bool = True) -> Iterator[str]:
    """The URL of a server that answers for ``door``."""

    class DoorHandler(BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", -1  # in one piece: a second packet would wait 40 ms for an answer

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, content = door.answer(self.command, self.path, self.headers, body)
            self.send_response(status)
            if status == 302:
                self.send_header("location", "http://127.0.0.1:1/")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _do

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), DoorHandler)
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
