"""JSON with very many values is rejected before parsing."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.errors import OmnibusError, TooLarge
from omnibus_gateway.openai import embeddings, images, rerank, speech, videos
from omnibus_gateway.openai import parse as density
from omnibus_gateway.openai.parse import MAX_PARTS, MAX_VALUES, check_values, parse_chat
from omnibus_gateway.openai.vllm_omni import translate_request
from tests.unit.gateway.house import ToyGateway, read_error_body

MIB = 1 << 20
MANY = 2 * MAX_VALUES

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "chat": parse_chat,
    "dialect": lambda body: translate_request(body, lambda name: (name, ["text"])),
    "images": images.parse_generation,
    "speech": speech.parse_speech_request,
    "embeddings": embeddings.parse_embedding_request,
    "rerank": rerank.parse_rerank_request,
    "videos": lambda body: videos.parse_video_request(body, "application/json"),
}
VALUE: dict[str, bytes] = {
    "lists": b"[" + b",".join([b"[]"] * MANY) + b"]",
    "objects": b"[" + b",".join([b'{"a":1}'] * MANY) + b"]",
    "strings": b"[" + b",".join([b'"a"'] * MANY) + b"]",
    "numbers": b"[" + b",".join([b"1"] * MANY) + b"]",
    "fields": b"{" + b",".join(b'"%d":1' % number for number in range(MANY)) + b"}",
    "spaces": b" " * (32 * MAX_VALUES) + b"[" + b",".join([b"1"] * MANY) + b"]",
    "strings with quotes": b"[" + b",".join([rb'"\\\"["'] * MANY) + b"]",
}
each_value = pytest.mark.parametrize("value", VALUE.values(), ids=VALUE.keys())
#: Fields that any route supports, ignores or rejects.
FIELDS = ["metadata", "logit_bias", "stop", "input", "extra_body"]


#: Each route with each kind of value, in rotating fields; nightly runs cover the other fields.
PLACES = [
    pytest.param(
        *(PARSERS[route], field, value),
        id=f"{route}-{field}-{kind}",
        marks=[] if (at + of) % len(FIELDS) == turn else pytest.mark.nightly,
    )
    for at, route in enumerate(PARSERS)
    for turn, field in enumerate(FIELDS)
    for of, (kind, value) in enumerate(VALUE.items())
]


@pytest.mark.parametrize(("parse", "field", "value"), PLACES)
def test_nothing_is_built_of_too_many_values_wherever_they_are(parse: Callable[[bytes], Any], field: str, value: bytes):
    body = b'{"model":"m","%b":%b}' % (field.encode(), value)
    tracemalloc.start()

    try:
        with pytest.raises(TooLarge, match=f"more than {MAX_VALUES} values"):
            parse(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < len(body) + 4 * MIB


@pytest.mark.parametrize(
    "path", ["chat/completions", "images/generations", "audio/speech", "embeddings", "rerank", "videos"]
)
async def test_a_route_refuses_them_by_its_usual_error(home: ToyGateway, path: str):
    body = b'{"model":"m","metadata":%b}' % VALUE["lists"]

    rejection = await home.http.post(f"/v1/{path}", content=body)

    assert (rejection.status_code, read_error_body(rejection)["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    "text",
    ["A" * 8 * MIB, "1,2,3," * MIB, "[{," * MIB, 'He said "no", and went. ' * 10_000, "\\" * MIB, '"' * 20_000],
    ids=["base64", "numbers", "marks", "quotes", "backslashes", "quotes alone"],
)
def test_long_texts_and_media_are_few_values(text: str):
    request = parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode())

    assert request.messages[0].content == text  # type: ignore[union-attr]


def test_as_many_values_as_may_be_are_read():
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"metadata":[%b]}'

    assert parse_chat(body % b",".join([b"1"] * (MAX_VALUES - 20)))
    with pytest.raises(TooLarge):
        parse_chat(body % b",".join([b"1"] * (MAX_VALUES + 1)))


JSON = st.recursive(
    st.none() | st.integers(-99, 99) | st.text(st.sampled_from('a"\\[{,]}:'), max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('a"\\,['), max_size=3), inner),
    max_leaves=30,
)


def count_values(value: Any) -> int:
    """Count the opening brackets and commas outside strings."""
    if not isinstance(value, list | dict):
        return 0
    members = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(members) - 1) + sum(count_values(each) for each in members)


@settings(max_examples=300, deadline=None)
@given(JSON, st.integers(0, 40))
def test_what_is_text_is_not_counted(value: Any, limit: int):
    body = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(density, "MAX_VALUES", limit)
        patch.setattr(density, "_VALUE_BYTES", 1 << 20)

        try:
            check_values(body)
            is_refused = False
        except OmnibusError:
            is_refused = True

    assert is_refused is (count_values(value) > limit and len(body) > limit)


@pytest.mark.parametrize(("count", "accepted"), [(MAX_PARTS, True), (MAX_PARTS + 1, False)])
def test_parts_are_counted_over_all_messages(count: int, accepted: bool):
    parts = [{"type": "text", "text": "a"}] * count
    messages = [{"role": "user", "content": parts[at : at + 1000]} for at in range(0, count, 1000)]
    body = json.dumps({"model": "m", "messages": messages}).encode()

    if accepted:
        assert len(parse_chat(body).messages) == 5
        return
    with pytest.raises(TooLarge, match=f"more than {MAX_PARTS} parts") as caught:
        parse_chat(body)
    assert caught.value.param == "messages"
