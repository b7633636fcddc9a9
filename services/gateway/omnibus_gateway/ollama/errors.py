"""Errors and streams of ``/api/`` in Ollama's form: lines of JSON instead of events."""

import msgspec

from omnibus_gateway.http.response import EVENTS, Headers
from omnibus_gateway.ollama.wire import PREFIX, OllamaError
from omnibus_gateway.openai.errors import ErrorBody

_LINES = b"application/x-ndjson"
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ErrorBody)


class OllamaDialect:
    """Errors on ``/api/`` are an object with one text."""

    prefix = PREFIX

    def request_headers(self, headers: Headers) -> Headers:
        """Return ``headers``: keys are bearer tokens here as well."""
        return headers

    def response_headers(self, headers: Headers) -> Headers:
        """Return ``headers`` with the content type of lines for a stream."""
        return [(name, _LINES if value == EVENTS else value) for name, value in headers]

    def convert_error(self, body: bytes, status: int) -> bytes:
        """Convert an error in OpenAI's format."""
        try:
            detail = _decoder.decode(body).error
        except msgspec.MsgspecError:
            return _encode(OllamaError(body.decode(errors="replace")))
        return _encode(OllamaError(f"{detail.param}: {detail.message}" if detail.param else detail.message))

    def frame_error(self, body: bytes) -> bytes:
        """Return the line of an error."""
        return body + b"\n"
