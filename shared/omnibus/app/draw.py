"""``python -m omnibus.app.draw SOURCE [REQUEST]``: draws an app's graphs for a request without running it.

A graph is drawn for ``serve``, for each other function, and for a chat with each modality that the app declares.
Used by ``omnibus app check``, see ``omnibus.process.run_module``. An error while a graph is drawn affects every
request, and is reported here with its line.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn

import msgspec
from pydantic import ValidationError

from omnibus.app.introspect import AppFunction, LoadedApp, load_app
from omnibus.app.protocol import JSON
from omnibus.app.routes import EMBEDDINGS, SPEECH, TRANSCRIPTIONS
from omnibus.app_record import AppSource
from omnibus.errors import BadRequest, OmnibusError
from omnibus.process import run_module
from omnibus.task import ChatInput, Segment, use
from omnibus.task.library import RecordingInput, TextInput, TextToSpeechInput
from omnibus.task.result import Source

DRAW_TIMEOUT_SECONDS = 10.0
_ROUTE_SAMPLES: dict[str, Any] = {
    TRANSCRIPTIONS: RecordingInput(media={"modality": "audio"}),
    SPEECH: TextToSpeechInput(text="text"),
    EMBEDDINGS: TextInput(text=["text"]),
}
_SAMPLES: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "boolean": False, "array": [], "object": {}}


class _GraphDrawn(BaseException):
    """Signals that the first graph is complete. It is not an ``Exception``, since an app may catch those."""


class _DrawingRuntime:
    """Runtime that records the first graph and stops the app's code."""

    segment: Segment | None = None

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Source]:
        self.segment = segment
        raise _GraphDrawn

    async def place_media(self, data: bytes, modality: str) -> dict[str, Any]:
        return {"modality": modality or "image"}

    def choice_point(self, site: int) -> float:
        return 0.0


async def draw_graphs(app: LoadedApp, body: Any) -> dict[str, Any]:
    """Return the ``graph`` that ``serve`` draws for ``body``, the ``sample``, and other ``graphs`` by kind of request.

    Raises the app's error with the line of its code, and ``BadRequest`` for a body that it does not accept.
    """
    drawn: dict[str, Any] = {}
    if JSON in app.functions:
        drawn = {"sample": body, "graph": await _draw_graph(app, app.functions[JSON], _parse_request(app, body))}
    samples = {kind: (app.functions[kind], _ROUTE_SAMPLES[kind]) for kind in app.description.routes}
    if app.description.chat:
        for modality in app.description.about.input_modalities:
            if modality != "text":
                sample = ChatInput.of("text", media=[{"modality": modality}])
                samples[f"chat with {modality}"] = app.functions[JSON], sample
    graphs = {name: await _draw_graph(app, function, request) for name, (function, request) in samples.items()}
    return {**drawn, "graphs": graphs} if graphs else drawn


async def _draw_graph(app: LoadedApp, function: AppFunction, request: Any) -> list[dict[str, Any]]:
    """Return the calls of the first graph for ``request``; none if the app responds without a graph."""
    runtime = _DrawingRuntime()
    try:
        async with asyncio.timeout(DRAW_TIMEOUT_SECONDS):
            with use(runtime):
                response = function.call(request)
                if isinstance(response, AsyncIterator):
                    await anext(response, None)
                else:
                    await response
    except _GraphDrawn:
        pass
    except TimeoutError:
        name = function.call.__name__
        raise BadRequest(f"`{name}` has drawn no graph within {DRAW_TIMEOUT_SECONDS:g} s") from None
    except Exception as error:  # noqa: BLE001 - all errors of an app are reported
        _raise_with_line(app, error)
    nodes = runtime.segment.nodes if runtime.segment is not None else ()
    return [
        {"task": node.task, "uses": [f"{origin}.{output}" for origin, output in node.uses], "pinned": pin}
        for node, pin in zip(nodes, _pins(runtime.segment), strict=True)
    ]


def _pins(segment: Segment | None) -> tuple[str, ...]:
    return () if segment is None else segment.pins or ("",) * len(segment.nodes)


def sample_request(app: LoadedApp) -> Any:
    """Return a request that ``app`` may accept. It has the required fields of the app's schema."""
    return {} if app.description.chat else _sample_value(app.description.request, app.description.request)


def _sample_value(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        schema = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for several in ("examples", "enum"):
        if schema.get(several):
            return schema[several][0]
    if schema.get("anyOf"):
        return _sample_value(schema["anyOf"][0], root)
    if "properties" in schema:
        required_names = schema.get("required", ())
        return {
            name: _sample_value(each, root) for name, each in schema["properties"].items() if name in required_names
        }
    return _SAMPLES.get(str(schema.get("type")))


def _parse_request(app: LoadedApp, body: Any) -> Any:
    if app.description.chat:
        return ChatInput.of("text") if body == {} else ChatInput(messages=body["messages"])
    try:
        return app.functions[JSON].request.validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "request"
        raise BadRequest(
            f"`serve` does not take {body!r:.200}, {where}: {first['msg']} (pass a valid request with --request)"
        ) from error


def _raise_with_line(app: LoadedApp, error: Exception) -> NoReturn:
    """Raise ``error`` with the innermost line of the app's own file."""
    line = app.find_line(error)
    where = f" ({app.file}:{line.lineno}: {line.line})" if line else ""
    if isinstance(error, OmnibusError):
        raise BadRequest(f"{error.message}{where}") from error
    raise BadRequest(f"{type(error).__name__}: {error}{where}") from error


def main() -> dict[str, Any]:
    app = load_app(msgspec.json.decode(sys.argv[1], type=AppSource))
    body = msgspec.json.decode(sys.argv[2]) if len(sys.argv) > 2 else sample_request(app)
    return asyncio.run(draw_graphs(app, body))


if __name__ == "__main__":
    sys.exit(run_module.report_answer(main))
