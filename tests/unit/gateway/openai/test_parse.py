"""Accepted chat bodies, and the location in the errors of rejected ones."""

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import completion_create_params

from omnibus.errors import BadRequest, TooLarge
from omnibus_gateway.openai.chat_request import ChatRequest, ImagePart, TextPart, UserMessage
from omnibus_gateway.openai.parse import parse_chat, read_body
from omnibus_gateway.openai.responses.request import parse_response_request


def build_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def build_user_body(*parts: object) -> bytes:
    return build_body(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": list(parts)}])


def test_a_plain_request_leaves_everything_else_unsaid() -> None:
    request = parse_chat(build_body())

    assert request.messages == [UserMessage(content="hi")]
    assert (request.token_limit, request.temperature, request.stop_strings, request.voice_name) == (None, None, (), "")
    assert request.wants_text
    assert not request.wants_audio
    assert not request.wants_usage


def test_a_full_request_is_read() -> None:
    request = parse_chat(
        build_body(
            modalities=["text", "audio"],
            audio={"voice": {"id": "voice_1234"}, "format": "wav"},
            stream=True,
            stream_options={"include_usage": True, "include_obfuscation": False},
            max_completion_tokens=64,
            temperature=2,
            top_p=1.0,
            seed=-5,
            stop=["a", "b", "c", "d"],
            top_k=-1,
            repetition_penalty=1.1,
            ignore_eos=True,
        )
    )

    assert (request.token_limit, request.temperature, request.seed) == (64, 2.0, -5)
    assert request.stop_strings == ("a", "b", "c", "d")
    assert request.voice_name == "voice_1234"
    assert request.wants_text
    assert request.wants_audio
    assert request.wants_usage


def test_an_integer_may_be_written_as_a_float() -> None:
    request = parse_chat(build_body(max_completion_tokens=64.0, seed=-5.0, top_p=1, temperature=0.5, stop=["1.0"]))

    assert (request.token_limit, request.seed, request.temperature, request.top_p) == (64, -5, 0.5, 1.0)
    assert request.stop_strings == ("1.0",)
    assert type(request.token_limit) is int
    assert parse_response_request(b'{"model": "m", "input": "hi", "max_output_tokens": 3e1}').max_output_tokens == 30
    for wrong in (64.5, 1e300):
        with pytest.raises(BadRequest) as caught:
            parse_chat(build_body(temperature=1.0, max_completion_tokens=wrong))
        assert caught.value.param == "max_completion_tokens"


def test_parts_keep_their_order_and_types() -> None:
    request = parse_chat(
        build_user_body(
            {"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": "u", "detail": "original"}}
        )
    )

    assert isinstance(request.messages[1], UserMessage)
    assert [type(part) for part in request.messages[1].content] == [TextPart, ImagePart]


def test_every_field_that_the_openai_client_can_send_is_known() -> None:
    field_names = set(completion_create_params.CompletionCreateParamsStreaming.__annotations__)
    field_names |= set(completion_create_params.CompletionCreateParamsBase.__annotations__)

    assert field_names - {field.encode_name for field in msgspec.structs.fields(ChatRequest)} == set()


FUNCTION = {"type": "function", "function": {"name": "f"}}
SCHEMA_PARAM = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("logit_bias", {}),
        ("frequency_penalty", 0),
        ("presence_penalty", 0.0),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "auto"),
        ("tool_choice", "none"),
        ("reasoning_effort", "none"),
        ("verbosity", "medium"),
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("store", True),
        ("service_tier", "auto"),
        ("parallel_tool_calls", True),
        ("prediction", {"type": "content", "content": "x"}),
        ("safety_identifier", "x"),
        ("prompt_cache_key", "x"),
        ("prompt_cache_retention", "24h"),
        ("prompt_cache_options", {"mode": "implicit"}),
        ("logprobs", True),
        ("logit_bias", {"50256": -100}),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -0.5),
        ("min_p", 0.1),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("reasoning_effort", "high"),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("stop", None),
        ("stop", []),
        ("max_tokens", None),
        ("max_tokens", -1),
        ("audio", {"voice": "alloy", "format": "mp3"}),
    ],
)
def test_options_that_can_be_obeyed_or_change_nothing_are_accepted(field: str, value: object) -> None:
    assert parse_chat(build_body(**{field: value})).model == "m"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("verbosity", "low"),
        ("web_search_options", {}),
        ("moderation", {"model": "m"}),
    ],
)
def test_options_that_would_change_the_answer_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"'{field}' is not supported") as caught:
        parse_chat(build_body(**{field: value}))

    assert caught.value.param == field


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (build_body(model=""), "model"),
        (build_body(model=3), "model"),
        (build_body(messages=[]), "messages"),
        (build_body(messages="hi"), "messages"),
        (build_body(messages=["hi"]), "messages[0]"),
        (build_body(messages=[{"content": "hi"}]), "messages[0].role"),
        (build_body(messages=[{"role": "robot", "content": "hi"}]), "messages[0].role"),
        (build_body(messages=[{"role": "tool", "content": "x"}]), "messages[0].tool_call_id"),
        (build_body(tool_choice="required"), "tool_choice"),
        (build_body(tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice"),
        (build_body(tools=[FUNCTION, FUNCTION]), "tools[1].function.name"),
        (build_body(tools=[FUNCTION], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice"),
        (build_body(tools=[FUNCTION], tool_choice="required", ignore_eos=True), "ignore_eos"),
        (build_body(tools=[{"type": "custom", "custom": {"name": "f"}}]), "tools[0].type"),
        (build_body(tools=[{"type": "function", "function": {"name": "f f"}}]), "tools[0].function.name"),
        (build_body(tools=[FUNCTION] * 129), "tools"),
        (build_body(response_format={"type": "xml"}), "response_format.type"),
        (build_body(response_format={"type": "json_schema", "json_schema": {"name": "x"}}), SCHEMA_PARAM),
        (build_body(response_format={"type": "json_object"}, ignore_eos=True), "ignore_eos"),
        (build_body(top_logprobs=3), "top_logprobs"),
        (build_body(logprobs=True, top_logprobs=21), "top_logprobs"),
        (build_body(logit_bias={"cat": 1}), "logit_bias"),
        (build_body(logit_bias={"5": 101}), "logit_bias[...]"),
        (build_body(presence_penalty=2.1), "presence_penalty"),
        (build_body(min_p=1.1), "min_p"),
        (build_body(reasoning_effort="huge"), "reasoning_effort"),
        (build_body(modalities=["image"], tools=[FUNCTION]), "tools"),
        (build_body(messages=[{"role": "function", "content": "x", "name": "f"}]), "messages[0].role"),
        (build_body(messages=[{"role": "user"}]), "messages[0].content"),
        (build_body(messages=[{"role": "user", "content": None}]), "messages[0].content"),
        (build_body(messages=[{"role": "user", "content": 7}]), "messages[0].content"),
        (build_body(messages=[{"role": "user", "content": []}]), "messages[0].content"),
        (build_body(messages=[{"role": "assistant"}]), "messages[0].content"),
        (build_body(messages=[{"role": "assistant", "content": "a", "audio": {"id": ""}}]), "messages[0].audio.id"),
        (build_body(messages=[{"role": "assistant", "content": None}]), "messages[0].content"),
        (
            build_body(messages=[{"role": "assistant", "tool_calls": [{"id": "1"}]}]),
            "messages[0].tool_calls[0].function",
        ),
        (build_body(messages=[{"role": "assistant", "function_call": {"name": "f"}}]), "messages[0].function_call"),
        (
            build_body(messages=[{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]),
            "messages[0].content[0].type",
        ),
        (build_user_body({"type": "text", "text": "t"}, {"type": "hologram"}), "messages[1].content[1].type"),
        (build_user_body({"text": "t"}), "messages[1].content[0].type"),
        (build_user_body({"type": "text"}), "messages[1].content[0].text"),
        (build_user_body({"type": "text", "text": 5}), "messages[1].content[0].text"),
        (build_user_body({"type": "image_url"}), "messages[1].content[0].image_url"),
        (build_user_body({"type": "image_url", "image_url": "u"}), "messages[1].content[0].image_url"),
        (build_user_body({"type": "image_url", "image_url": {}}), "messages[1].content[0].image_url.url"),
        (build_user_body({"type": "image_url", "image_url": {"url": ""}}), "messages[1].content[0].image_url.url"),
        (
            build_user_body({"type": "image_url", "image_url": {"url": "u", "detail": "huge"}}),
            "messages[1].content[0].image_url.detail",
        ),
        (
            build_user_body({"type": "input_audio", "input_audio": {"data": "AA=="}}),
            "messages[1].content[0].input_audio.format",
        ),
        (
            build_user_body({"type": "input_audio", "input_audio": {"data": "AA==", "format": "exe"}}),
            "messages[1].content[0].input_audio.format",
        ),
        (build_user_body({"type": "video_url", "video_url": {"url": 1}}), "messages[1].content[0].video_url.url"),
        (build_user_body({"type": "audio_url", "audio_url": None}), "messages[1].content[0].audio_url"),
        (build_body(modalities=[]), "modalities"),
        (build_body(modalities=["text", "video"]), "modalities[1]"),
        (build_body(modalities=["text", "audio"]), "audio"),
        (build_body(modalities=["audio"], audio={"voice": "alloy"}), "audio.format"),
        (build_body(modalities=["audio"], audio={"format": "wav"}), "audio.voice"),
        (build_body(modalities=["audio"], audio={"format": "wav", "voice": ""}), "audio.voice"),
        (build_body(modalities=["audio"], audio={"format": "wma", "voice": "alloy"}), "audio.format"),
        (build_body(temperature=-0.1), "temperature"),
        (build_body(temperature=2.1), "temperature"),
        (build_body(temperature="hot"), "temperature"),
        (build_body(top_p=0), "top_p"),
        (build_body(top_p=1.01), "top_p"),
        (build_body(top_k=-2), "top_k"),
        (build_body(repetition_penalty=0), "repetition_penalty"),
        (build_body(max_tokens=0), "max_tokens"),
        (build_body(max_tokens=True), "max_tokens"),
        (build_body(max_completion_tokens=-1), "max_completion_tokens"),
        (build_body(max_completion_tokens=2**40), "max_completion_tokens"),
        (build_body(max_tokens=1, max_completion_tokens=1), "max_tokens"),
        (build_body(seed=2**64), "seed"),
        (build_body(n=0), "n"),
        (build_body(n=9), "n"),
        (build_body(stop=["a", "b", "c", "d", "e"]), "stop"),
        (build_body(stop=[""]), "stop[0]"),
        (build_body(stop=[1]), "stop[0]"),
        (build_body(stream="yes"), "stream"),
        (build_body(stream_options={"include_usage": True}), "stream_options"),
        (build_body(stream=True, stream_options={"include_usage": "yes"}), "stream_options.include_usage"),
        (build_body(temprature=0.5), "temprature"),
        (b'{"model": "m"}', "messages"),
        (b'{"messages": [{"role": "user", "content": "hi"}]}', "model"),
    ],
)
def test_an_error_points_at_the_place(data: bytes, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(data)

    assert caught.value.param == param
    assert caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"hello",
        build_body()[:-1],
        build_body() + b"x",
        b"\xff\xfe" + build_body(),
        build_body().replace(b"hi", b"\xff"),
        build_body().replace(b"hi", b"\\ud800"),
        build_body(metadata="here").replace(b'"here"', b"[" * 100_000 + b"]" * 100_000),
        build_body(metadata="here").replace(b'"here"', b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        build_body(temperature="here").replace(b'"here"', b"1e999"),
        build_body(temperature="here").replace(b'"here"', b"NaN"),
    ],
)
def test_broken_json_is_a_bad_request(data: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_chat(data)


@pytest.mark.parametrize(
    "data",
    [
        build_body(messages=[{"role": "r" * 10_000}]),
        build_body(**{"f" * 10_000: 1}),
        build_user_body({"type": "t" * 10_000}),
    ],
)
def test_a_clients_own_text_is_repeated_only_in_part(data: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(data)

    assert len(caught.value.message) < 300
    assert len(caught.value.param) < 300


def test_an_unknown_argument_is_named_as_openai_names_it() -> None:
    with pytest.raises(BadRequest, match=r"^Unrecognized request argument supplied: temprature$"):
        parse_chat(build_body(temprature=0.5))


def test_unknown_fields_inside_messages_are_ignored() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": [],
    }

    assert len(parse_chat(build_body(messages=[answer, {"role": "user", "content": "hi", "name": "n"}])).messages) == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.sampled_from([field.encode_name for field in msgspec.structs.fields(ChatRequest)]), json_values)
def test_any_value_anywhere_is_accepted_or_a_bad_request_about_it(field: str, value: object) -> None:
    try:
        parse_chat(build_body(**{field: value}))
    except BadRequest as error:
        param = error.param
    else:
        return

    assert param.startswith((field, "audio", "max_tokens", "stream_options", "tool_choice", "top_logprobs", "tools"))


async def stream_chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_body_is_collected_up_to_the_limit() -> None:
    assert await read_body(stream_chunks([b"abc", b"", b"de"]), 5, declared_size=5) == b"abcde"
    assert await read_body(stream_chunks([]), 5) == b""


async def test_a_body_over_the_limit_is_refused_while_it_arrives() -> None:
    reads = []

    async def stream_endlessly() -> AsyncIterator[bytes]:
        while True:
            reads.append(1)
            yield bytes(3)

    with pytest.raises(TooLarge, match="more than 5 bytes"):
        await read_body(stream_endlessly(), 5)
    assert len(reads) == 2


async def test_a_declared_body_over_the_limit_is_refused_before_it_is_read() -> None:
    reads = []

    async def stream_once() -> AsyncIterator[bytes]:
        reads.append(1)
        yield b""

    with pytest.raises(TooLarge):
        await read_body(stream_once(), 5, declared_size=6)
    assert reads == []
