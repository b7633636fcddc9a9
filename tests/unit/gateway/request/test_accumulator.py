"""The finish reason, text and speech of an answer."""

import numpy as np
import pytest

from omnibus.metrics import GATEWAY
from omnibus_gateway.request.accumulator import AnswerAccumulator


@pytest.mark.parametrize(
    ("text", "speech", "finish"),
    [
        ("stop", {}, "stop"),
        ("stop", {"finish_reason": "length"}, "length"),
        ("length", {}, "length"),
        ("length", {"finish_reason": "length"}, "length"),
        ("content_filter", {"finish_reason": "length"}, "content_filter"),
    ],
)
def test_an_answer_whose_speech_is_cut_ends_with_length(text: str, speech: dict[str, str], finish: str) -> None:
    cut_count = GATEWAY.speech_cut.labels("omni")._value.get()
    got = AnswerAccumulator("omni", 0.0)

    got.add_item("audio", {"rate": 24000}, np.zeros(480, np.float32))
    got.add_item("text", {"finish_reason": text, "usage": {"completion_tokens": 1}}, None)
    got.add_item("audio", {"samples": 480, **speech}, None)

    assert got.finish == got.to_answer().finish_reason == finish
    assert GATEWAY.speech_cut.labels("omni")._value.get() - cut_count == len(speech)
    assert got.usage().completion_tokens_details.audio_tokens == 1
