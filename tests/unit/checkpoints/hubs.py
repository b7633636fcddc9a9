"""A local hub with its client's endpoints, and a cache in the client's layout."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """A server of repositories, as id to files. Those in ``gated`` are always denied; ``asked`` lists files read."""

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]], gated: tuple[str, ...] = ()) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.gated = gated
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer_request(body=False)

    def do_GET(self) -> None:
        self._answer_request(body=True)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer_request(self, body: bool) -> None:
        path = self.path.partition("?")[0].removeprefix("/api/models").strip("/").replace("%2F", "/")
        owner, name, *rest = path.split("/")
        id = f"{owner}/{name}"
        if id not in self.server.repositories:
            return self._send_body(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if rest[:1] in (["revision"], []):
            return self._send_body(200, json.dumps({"id": id, "sha": COMMIT, "siblings": []}).encode())
        if id in self.server.gated:
            return self._send_body(403, b"{}", {"X-Error-Code": "GatedRepo"})
        files = self.server.repositories[id]
        if rest[0] == "tree":
            return self._send_body(200, json.dumps([_describe_file(*item) for item in files.items()]).encode())
        file = "/".join(rest[2:])
        if body:
            self.server.asked.append(file)
        return self._send_body(
            200, files[file], {"X-Repo-Commit": COMMIT, "ETag": f'"{_hash_body(files[file])}"'}, body
        )

    def _send_body(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, send: bool = True) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if send:
            self.wfile.write(body)


def _describe_file(path: str, body: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(body), "oid": _hash_body(body)}


def _hash_body(body: bytes) -> str:
    return sha1(body).hexdigest()


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """Serve until the block ends."""
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


def cache_checkpoint(cache: Path, id: str, checkpoint: Path) -> Path:
    """Copy a checkpoint into a cache and return its path there."""
    root = cache / f"models--{id.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    (root / "snapshots").mkdir()
    (root / "snapshots" / COMMIT).symlink_to(checkpoint)
    return root / "snapshots" / COMMIT
