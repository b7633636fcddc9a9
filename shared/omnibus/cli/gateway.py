"""HTTP client for a gateway's routes, and the lookup of its address."""

import argparse
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from omnibus.errors import Fatal, OmnibusError, ProblemDetails, StageUnavailable, from_problem
from omnibus.up import runs
from omnibus.up.tls import trusted_context

TOKEN, APPS_DIR = "OMNIBUS_GATEWAY_ADMIN_TOKEN", "OMNIBUS_GATEWAY_APPS_DIR"
#: Seconds to wait for a response: an app may load and its executors may start meanwhile.
RESPONSE_TIMEOUT_SECONDS = 300.0


class Gateway:
    """Client of one gateway.

    ``apps_dir`` is the directory from which the gateway loads apps, empty if unknown. ``certificate`` is the
    self-signed one of a gateway on this machine that uses TLS.
    """

    def __init__(self, url: str, token: str, apps_dir: str, certificate: str = "") -> None:
        self.url = url.rstrip("/")
        self.apps_dir = apps_dir
        self._token = token
        self._believed = trusted_context(certificate)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the gateway's JSON response. Raises its error, typed, and ``StageUnavailable``."""
        with self._open_request(method, path, body) as answer:
            return _parse_json(answer.read())

    def call_text(self, method: str, path: str, body: Any) -> str:
        """Return the gateway's response as text. Raises as ``call`` does."""
        with self._open_request(method, path, body) as answer:
            text: str = answer.read().decode()
            return text

    def read_file(self, path: str) -> tuple[str, bytes]:
        """Return the content type and the bytes of a file. Raises as ``call`` does."""
        with self._open_request("GET", path, None) as answer:
            return answer.headers.get_content_type(), answer.read()

    def call_streaming(self, path: str, body: Any) -> Iterator[Any]:
        """Yield the response to a POST: one value, or the parts of a stream as they arrive."""
        with self._open_request("POST", path, body) as answer:
            if answer.headers.get_content_type() != "text/event-stream":
                yield _parse_json(answer.read())
                return
            for line in answer:
                data = line.decode().strip().removeprefix("data: ")
                if not data or data == "[DONE]":
                    continue
                part = json.loads(data)
                if isinstance(part, dict) and set(part) == {"error"} and isinstance(part["error"], dict):
                    raise _typed_error(part["error"])
                yield part

    def _open_request(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._token}"}
        try:
            request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)  # noqa: S310
            # The address is the user's or the run's.
            return urllib.request.urlopen(request, timeout=RESPONSE_TIMEOUT_SECONDS, context=self._believed)  # noqa: S310
        except urllib.error.HTTPError as error:
            raise _response_error(error) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise StageUnavailable(f"no gateway at {self.url}: {reason}") from error


def find_gateway(options: argparse.Namespace) -> Gateway:
    """Return the gateway of ``--url``, or that of the running ``omnibus up``. Raises ``StageUnavailable``."""
    token, apps_dir = os.environ.get(TOKEN, ""), os.environ.get(APPS_DIR, "")
    if options.url:
        return Gateway(options.url, token, apps_dir)
    state = runs.read_state()
    return Gateway(state.gateway_url, token or state.admin_token, state.apps_dir, state.certificate)


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise Fatal("the server is not an Omnibus gateway: its response is not JSON") from error


def _response_error(response: urllib.error.HTTPError) -> OmnibusError:
    try:
        return _typed_error(json.loads(response.read())["error"])
    except (ValueError, KeyError, TypeError):
        return Fatal(f"the gateway answered {response.code} {response.reason}")


def _typed_error(detail: dict[str, Any]) -> OmnibusError:
    return from_problem(ProblemDetails(code=str(detail.get("code")), message=str(detail.get("message"))))
