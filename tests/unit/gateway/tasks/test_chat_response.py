"""A whole answer has OpenAI's shape, by the ``openai`` package's types."""

import base64
import json

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from omnibus_gateway.openai.chat_response import (
    ChatCompletionAudio,
    ChatStream,
    StructuredParts,
    build_usage,
    encode_completion,
)
from omnibus_gateway.request.continuing import NumberedStream, parse_event_id

COUNTS = build_usage(prompt_text=5, prompt_image=100, prompt_audio=25, cached=64, text=7, audio=30)


def test_a_text_answer_is_a_chat_completion() -> None:
    data = encode_completion(
        id="chatcmpl-1",
        model="m",
        created=1700000000,
        text="héllo\n",
        finish_reason="stop",
        usage=COUNTS,
        fingerprint="e7",
    )

    answer = ChatCompletion.model_validate_json(data, strict=True)

    assert answer.choices[0].message.content == "héllo\n"
    assert answer.choices[0].message.audio is None
    assert "audio" not in json.loads(data)["choices"][0]["message"]
    assert (answer.choices[0].finish_reason, answer.system_fingerprint) == ("stop", "e7")
    assert answer.model_extra == {}


def test_a_spoken_answer_carries_its_sound_in_base64() -> None:
    sound = ChatCompletionAudio(id="audio_1", data=b"\x00\xff\x10", expires_at=1700003600, transcript="hi")

    answer = ChatCompletion.model_validate_json(
        encode_completion(id="i", model="m", created=1, text=None, finish_reason="length", usage=COUNTS, audio=sound)
    )

    message = answer.choices[0].message
    assert message.content is None
    assert message.audio is not None
    assert base64.b64decode(message.audio.data, validate=True) == b"\x00\xff\x10"
    assert (message.audio.id, message.audio.expires_at, message.audio.transcript) == ("audio_1", 1700003600, "hi")


def test_usage_adds_up_and_names_the_kinds() -> None:
    answer = ChatCompletion.model_validate_json(
        encode_completion(id="i", model="m", created=1, text="", finish_reason="stop", usage=COUNTS)
    )

    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (130, 37, 167)
    prompt = answer.usage.prompt_tokens_details
    assert (prompt.text_tokens, prompt.image_tokens, prompt.audio_tokens, prompt.cached_tokens) == (5, 100, 25, 64)
    assert answer.usage.completion_tokens_details.audio_tokens == 30
    assert answer.usage.completion_tokens_details.text_tokens == 7


def test_calls_and_reasoning_are_in_an_answer() -> None:
    parts = StructuredParts("hm", (("f", '{"a": 1}'), ("g", "{}")))

    data = encode_completion(id="i", model="m", created=1, text="", finish_reason="stop", usage=COUNTS, parts=parts)

    [choice] = ChatCompletion.model_validate_json(data, strict=True).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []] == [
        ("f", '{"a": 1}'), ("g", "{}"),
    ]  # fmt: skip
    assert len({call.id for call in choice.message.tool_calls or []}) == 2
    assert choice.message.reasoning_content == "hm"


def test_calls_are_streamed_in_parts_and_continued_behind_any_of_them() -> None:
    texts = ['\x1ef\x1f{"a"', ": 1}\x1eg\x1f", "{}"]
    plain = NumberedStream(ChatStream("i", "m", 1), "t", "wav", None)
    frames = [plain.reasoning("hm"), *map(plain.calls, texts), plain.finish("stop")]

    assert _read_calls(frames) == [("f", '{"a": 1}'), ("g", "{}")]
    assert b'"finish_reason":"tool_calls"' in frames[-1]
    for sent_count in range(1, 4):
        _, after = parse_event_id(frames[sent_count - 1].rpartition(b"id: ")[2].split(b"\n")[0].decode())
        again = NumberedStream(ChatStream("i", "m", 1), "t", "wav", after)
        rest = [again.reasoning("hm"), again.calls("".join(texts)), again.finish("stop")]
        assert _read_calls([*frames[:sent_count], *rest]) == [("f", '{"a": 1}'), ("g", "{}")]
        assert rest[-1] == frames[-1]


def _read_calls(frames: list[bytes]) -> list[tuple[str, str]]:
    parts_by_call: dict[int, list[str]] = {}
    ids: dict[int, str] = {}
    for line in b"".join(frames).split(b"\n"):
        if line.startswith(b"data: "):
            chunk = ChatCompletionChunk.model_validate_json(line[6:], strict=True)
            for call in chunk.choices[0].delta.tool_calls or []:
                if call.id:
                    assert call.index not in ids
                    ids[call.index] = call.id
                assert call.function is not None
                parts = parts_by_call.setdefault(call.index, [call.function.name or "", ""])
                parts[1] += call.function.arguments or ""
    return [(name, arguments) for _, (name, arguments) in sorted(parts_by_call.items())]
