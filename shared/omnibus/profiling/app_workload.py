"""Workload of apps: the example inputs with which their unit tasks are measured.

    {"requests": [{"app": "search", "share": 2, "body": {"query": "cake", "texts": ["a cake", "a train"]}},
                  {"app": "receipt", "body": {"messages": [{"role": "user", "content": [{"image": "receipt.png"}]}]}}]}

A body with ``messages`` is a chat with the app's model, and may have media as in ``omnibus.profiling.workload``. Other
bodies are those of ``POST /v1/apps/NAME/invoke``. Each app is a request type.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.profiling.workload import ChatMessageReader, Workload, WorkloadRequest, json_entries

#: Characters of a body in a workload's label.
_MAX_TEXT_CHARS = 80


def read_app_workload(path: Path, models: Mapping[str, str], seed: int = 0) -> Workload:
    """Return the workload of ``path`` for apps; ``models`` maps each app to the model that it serves, empty if none.

    Raises ``BadRequest`` for a file that cannot be read, and for an app without a request: the profiler would not know
    what to measure it with.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"the workload {path} cannot be read: {error}") from error
    requests = [_build_request(path, seed, models, *entry) for entry in json_entries(path, text)]
    missing = [app for app in models if app not in {request.kind for request in requests}]
    if missing:
        raise BadRequest(
            f"the workload {path} has no request for {', '.join(missing)}: without an example input a unit task cannot "
            f'be measured. Add {{"app": "{missing[0]}", "body": {{...}}}}'
        )
    total = sum(request.share for request in requests)
    if not total > 0:
        raise BadRequest(f"the workload {path} gives no request a share: set a `share` above 0")
    label = "; ".join(f"{request.kind} {_describe_body(request.body)}" for request in requests)
    return Workload(label, tuple(msgspec.structs.replace(each, share=each.share / total) for each in requests))


def _build_request(
    path: Path, seed: int, models: Mapping[str, str], where: str, share: float, entry: Mapping[str, Any]
) -> WorkloadRequest:
    app, body = str(entry.get("app", "")), dict(entry["body"])
    if app not in models:
        raise BadRequest(f"{path}: {where} names the app {app!r}; there is {', '.join(models) or 'none'}")
    if "messages" not in body:
        return _make_request(app, share, where, body, f"/v1/apps/{app}/invoke")
    if not models[app]:
        raise BadRequest(f"{path}: {where} is a chat, but the app {app} serves no model: send the input of its `serve`")
    reader = ChatMessageReader(path, seed, where)
    try:
        body["messages"] = [reader.convert_message(message) for message in body["messages"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRequest(f"{path}: {where} is not a chat request ({error!r})") from error
    body |= {"model": models[app], "stream": True, "stream_options": {"include_usage": True}}
    return _make_request(app, share, where, body, "")


def _make_request(app: str, share: float, where: str, body: Any, target: str) -> WorkloadRequest:
    data = json.dumps(body).encode()
    return WorkloadRequest(share, app, (), (), data, data, float(len(data)), where, target=target)


def _describe_body(body: bytes) -> str:
    """Return the beginning of a body, its bytes and its digest, without the data of media."""
    text = body.decode()
    digest = hashlib.sha256(body).hexdigest()[:8]
    return f"{_shorten_media(json.loads(text))} ({len(text)} bytes, {digest})"


def _shorten_media(body: Any) -> str:
    texts = [part for part in _iterate_texts(body) if not part.startswith("data:")]
    return " ".join(texts)[:_MAX_TEXT_CHARS]


def _iterate_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _iterate_texts(each)]
