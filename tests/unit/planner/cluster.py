"""An API server of a cluster with nothing but Deployments and StatefulSets, in a thread of this process."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

CERTIFICATE = Path(__file__).with_name("cluster.test.pem")  # for 127.0.0.1, valid until 2125
ROOT = "/apis/apps/v1/namespaces/ns/"
TOKEN = "the token"


class FakeCluster:
    """``objects`` by path below ``ROOT``; ``asked`` is every request; ``refusals`` are answered first."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.refusals: list[tuple[int, bytes]] = []
        self.tokens: set[str] = set()

    @property
    def changes(self) -> list[tuple[str, str]]:
        return [(method, path.partition("/")[0]) for method, path in self.asked if method != "GET"]

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        match method:
            case "GET":
                chosen = dict(each.split("=") for each in query["labelSelector"][0].split(","))
                found = [one for key, one in self.objects.items() if key.startswith(path)]
                return 200, {"items": [one for one in found if chosen.items() <= one["metadata"]["labels"].items()]}
            case "POST":
                key = f"{path}/{body['metadata']['name']}"
                if key in self.objects:
                    return 409, {"message": f"{key} already exists"}
                self.objects[key] = body
                return 201, body
        if path not in self.objects:
            return 404, {"message": f"{path} not found"}
        match method:
            case "PATCH":
                _merge(self.objects[path], body)
            case "PUT":
                self.objects[path] = body
            case "DELETE":
                return 200, self.objects.pop(path)
        return 200, self.objects[path]


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


@contextmanager
def serving(cluster: FakeCluster, tls: bool = True) -> Iterator[str]:
    """The URL of a server that answers for ``cluster``."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            asked = urlsplit(self.path)
            path = unquote(asked.path).removeprefix(ROOT)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            cluster.asked.append((self.command, path))
            cluster.tokens.add(self.headers.get("authorization", ""))
            if cluster.refusals:
                status, said = cluster.refusals.pop(0)
            elif self.headers.get("authorization") != f"Bearer {TOKEN}":
                status, said = 401, json.dumps({"message": "Unauthorized"}).encode()
            else:
                parsed = json.loads(body) if body else None
                status, answer = cluster.answer(self.command, path, parse_qs(asked.query), parsed)
                said = json.dumps(answer).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("location", "http://127.0.0.1:1/")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _do

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
