"""``omnibus app check``: loads an app in a separate worker process, as a gateway would, and describes it."""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import omnibus
from omnibus.app import protocol
from omnibus.app.module_loader import DIRECTORY, IMPORT, UPLOAD
from omnibus.app.transport import Frames, encode_message, from_worker
from omnibus.app_record import AppSource
from omnibus.cli import app_target
from omnibus.cli.format.tables import field_lines
from omnibus.cli.output import print_json
from omnibus.errors import BadRequest, DeadlineExceeded, from_problem
from omnibus.process import run_module

#: Seconds that an app may take to load, and its worker to end.
LOAD_TIMEOUT_SECONDS, EXIT_TIMEOUT_SECONDS = 60.0, 5.0
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: Discard what the app prints: a problem is reported in one line.
_NO_STDIO: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


async def check_app(options: argparse.Namespace) -> int:
    """Print a description of the app, and its graph for a request. Raises ``BadRequest`` if the app is invalid."""
    description = await describe_app(options.target, options.upload)
    about = msgspec.to_builtins(description)
    if not options.upload:  # the code of an upload runs restricted
        about |= await _draw_graph(options.target, options.request)
    if options.json:
        print_json(about)
    else:
        print("\n".join(field_lines(describe_fields(about))))
    return 0


async def _draw_graph(target: str | None, request: str | None) -> dict[str, Any]:
    """Return the result of ``omnibus.app.draw``. If the app rejects the default request, return a note instead."""
    source, _ = _app_source(target, None)
    arguments = [
        msgspec.json.encode(source).decode(),
        *([json.dumps(app_target.parse_request(request))] if request else []),
    ]
    try:
        graph: dict[str, Any] = await run_module.call_module(
            "omnibus.app.draw", *arguments, within=LOAD_TIMEOUT_SECONDS, env=_worker_environment()
        )
    except BadRequest as error:
        if request is None and error.message.startswith("`serve` does not take"):
            return {"note": error.message}
        raise
    return graph


async def describe_app(target: str | None, upload: str | None = None) -> protocol.Description:
    """Load an app in a worker and return its description. Raises ``BadRequest`` if the app is invalid."""
    return await asyncio.to_thread(_load_in_worker, *_app_source(target, upload))


def describe_fields(about: dict[str, Any]) -> dict[str, str]:
    """Return the description of an app as fields for ``field_lines``."""
    tasks = [f"{task['name']}{' (own)' if task['own'] else ''}" for task in about["tasks"]]
    return {
        "app": about["name"],
        "model": about["model"] and f"{about['model']} ({', '.join(_route_names(about))})",
        "tasks": "\n".join(tasks) or "none",
        **(_describe_serve(about) if about["invocable"] else {}),
        "graph": "\n".join(_graph_lines(about.get("graph", ()))) or about.get("note", ""),
        **{name: "\n".join(_graph_lines(graph)) for name, graph in about.get("graphs", {}).items()},
        "doc": about["doc"],
        "walls": ", ".join(about.get("restricted", ())),
    }


def _describe_serve(about: Mapping[str, Any]) -> dict[str, str]:
    return {
        "request": "a chat request" if about["chat"] else _schema_text(about["request"]),
        "response": _schema_text(about["response"]) + (", part by part" if about["streams"] else ""),
    }


def _route_names(about: Mapping[str, Any]) -> list[str]:
    return ["chat completions"] * bool(about["route"]) + [name for name in about["routes"] if name != about["route"]]


def _graph_lines(graph: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for index, node in enumerate(graph):
        uses = f" of {', '.join(node['uses'])}" if node["uses"] else ""
        yield f"{index} {node['task']}{uses}" + (f" ({node['pinned']})" if node["pinned"] else "")


def _schema_text(schema: dict[str, Any]) -> str:
    """Return a JSON schema as one line: its fields and their types."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return str(schema.get("title") or schema.get("type") or "any JSON")
    required_names = schema.get("required", ())
    fields = [
        f"{name}{'' if name in required_names else '?'}: {_type_text(field)}" for name, field in properties.items()
    ]
    return f"{{{', '.join(fields)}}}"


def _type_text(field: Any) -> str:
    if not isinstance(field, dict):
        return "any"
    if "anyOf" in field:
        return " | ".join(map(_type_text, field["anyOf"]))
    return str(field.get("type") or field.get("$ref", "any").rpartition("/")[2])


def _app_source(target: str | None, upload: str | None) -> tuple[AppSource, str]:
    if upload is not None:
        body = app_target.source_body(None, upload, "")
        return AppSource(UPLOAD, body["name"]), body["upload"]
    if target is None:
        raise BadRequest("name a module, a file, or `--upload FILE`")
    if not app_target.is_file(target):
        return AppSource(IMPORT, target), ""
    module, root = app_target.locate_module(target)
    return AppSource(DIRECTORY, module, str(root)), ""


def _load_in_worker(source: AppSource, text: str) -> protocol.Description:
    local_end, worker_end = socket.socketpair()
    with local_end, worker_end:
        local_end.settimeout(LOAD_TIMEOUT_SECONDS)
        argv = [sys.executable, "-m", "omnibus.app.worker", str(worker_end.fileno())]
        with subprocess.Popen(argv, pass_fds=[worker_end.fileno()], env=_worker_environment(), **_NO_STDIO) as worker:
            worker_end.close()
            try:
                local_end.sendall(encode_message(protocol.LoadApp(source, text)))
                return _read_worker_answer(local_end)
            except TimeoutError:
                raise DeadlineExceeded(f"{source.module} did not load within {LOAD_TIMEOUT_SECONDS:g} s") from None
            finally:
                local_end.close()  # ends the worker
                _stop_worker(worker)


def _worker_environment() -> dict[str, str]:
    """Return this environment with this SDK on the path. Numeric libraries get one thread: a sandbox restricts one
    thread only."""
    path = os.pathsep.join(
        filter(None, [str(Path(omnibus.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")])
    )
    return {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, "1"), "PYTHONPATH": path}


def _read_worker_answer(local_end: socket.socket) -> protocol.Description:
    frames, body = Frames(), b""
    while not body:
        try:
            data = local_end.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            raise BadRequest("the app ended its process while it was loaded")
        body = next(iter(frames.feed(data)), b"")
    message = from_worker(body)
    if isinstance(message, protocol.Broken):
        raise from_problem(message.problem)
    if not isinstance(message, protocol.AppReady):
        raise BadRequest(f"the app's worker answered {type(message).__name__}")
    return message.description


def _stop_worker(worker: "subprocess.Popen[bytes]") -> None:
    try:
        worker.wait(EXIT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
