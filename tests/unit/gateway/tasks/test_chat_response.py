"""A whole answer has OpenAI's shape, checked with the types of the ``openai`` package."""

import base64
import json

from openai.types.chat import ChatCompletion

from services.gateway.openai.chat_response import ChatCompletionAudio, build_usage, encode_completion

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
