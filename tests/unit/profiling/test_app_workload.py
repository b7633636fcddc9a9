"""Example inputs of apps: each app needs one, and the profile tells which were measured."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus.profiling.app_workload import read_app_workload

CHAT = {"messages": [{"role": "user", "content": [{"image": [8, 8]}, "read this"]}], "temperature": 0}


def write_workload(tmp_path: Path, *requests: Any) -> Path:
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"requests": requests}))
    return path


def test_requests_go_to_the_route_of_their_app_by_their_shares(tmp_path: Path):
    path = write_workload(
        tmp_path, {"app": "search", "share": 3, "body": {"query": "cake"}}, {"app": "receipt", "body": CHAT}
    )

    workload = read_app_workload(path, {"search": "", "receipt": "receipts"})

    search, receipt = workload.requests
    assert (search.target, json.loads(search.body)) == ("/v1/apps/search/invoke", {"query": "cake"})
    assert workload.type_shares == {"search": 0.75, "receipt": 0.25}
    body = json.loads(receipt.body)
    assert (receipt.target, body["model"], body["stream"], body["temperature"]) == ("", "receipts", True, 0)
    image = body["messages"][0]["content"][0]["image_url"]["url"]
    assert base64.b64decode(image.partition(",")[2]).startswith(b"\x89PNG")


def test_the_label_has_the_texts_and_the_size_of_each_input_but_no_media(tmp_path: Path):
    short = read_app_workload(write_workload(tmp_path, {"app": "a", "body": {"text": "one"}}), {"a": ""})
    long = read_app_workload(write_workload(tmp_path, {"app": "a", "body": {"text": "one" * 99}}), {"a": ""})
    chat = read_app_workload(write_workload(tmp_path, {"app": "a", "body": CHAT}), {"a": "m"})

    assert short.label.startswith("a one (15 bytes, ")
    assert "(309 bytes, " in long.label
    assert len(long.label) < 120
    assert "read this" in chat.label
    assert "base64" not in chat.label


@pytest.mark.parametrize(
    ("requests", "fault"),
    [
        ([{"app": "a", "body": {}}], r'no request for b: .* Add {"app": "b", "body": {...}}'),
        ([{"app": "c", "body": {}}], "names the app 'c'; there is a, b"),
        ([{"body": {}}], "names the app ''"),
        ([{"app": "b", "body": CHAT}], "is a chat, but the app b serves no model"),
        ([{"app": "a", "body": {"messages": [{}]}}], "is not a chat request"),
        ([{"app": "a", "body": {"messages": [{"content": [{"image": "no.png"}]}]}}], "no.png cannot be read"),
        ([{"app": "a"}], "must have a `body`"),
        ([{"app": name, "body": {}, "share": 0} for name in "ab"], "gives no request a share"),
    ],
)
def test_a_workload_without_an_input_for_each_app_is_an_error(tmp_path: Path, requests: list[Any], fault: str):
    with pytest.raises(BadRequest, match=fault):
        read_app_workload(write_workload(tmp_path, *requests), {"a": "m", "b": ""})


def test_a_workload_that_cannot_be_read_is_an_error(tmp_path: Path):
    with pytest.raises(BadRequest, match="cannot be read"):
        read_app_workload(tmp_path / "none.json", {"a": ""})
