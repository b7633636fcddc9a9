"""Requests of other sizes: the changed and the unchanged parts."""

import json
from pathlib import Path

import pytest

from omnibus.profiling.size_variants import LONG_ANSWER, LONG_PROMPT, MORE_MEDIA, SHORT_ANSWER, SMALL_MEDIA, vary_body
from omnibus.profiling.workload import read_workload
from tests.unit.profiling.subjects import make_vl_subject

PICTURE = {"messages": [{"role": "user", "content": [{"image": [448, 224]}, {"words": 10}]}], "max_tokens": 20}


def make_variants(body: dict, *modalities: str) -> dict[str, dict]:
    return dict(vary_body(body, modalities))


def read_content(body: dict) -> list:
    return body["messages"][-1]["content"]


def test_media_become_smaller_and_more():
    variants = make_variants(PICTURE, "image")

    assert read_content(variants[SMALL_MEDIA]) == [{"image": [224, 112]}, {"words": 10}]
    assert read_content(variants[MORE_MEDIA]) == [{"image": [448, 224]}] * 3 + [{"words": 10}]
    assert make_variants(PICTURE).keys() == {LONG_PROMPT, SHORT_ANSWER, LONG_ANSWER}


@pytest.mark.parametrize(
    ("part", "smaller"),
    [
        ({"image": [60, 40]}, {"image": [56, 40]}),
        ({"image": "cat.jpg"}, {"image": [224, 224]}),
        ({"type": "image_url", "image_url": {"url": "https://here/cat.jpg"}}, {"image": [224, 224]}),
        ({"audio": 3.0}, {"audio": 1.5}),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, {"audio": 2.0}),
        ({"video": [224, 224, 4]}, {"video": [112, 112, 2]}),
    ],
)
def test_a_smaller_medium_is_of_a_known_size(part: dict, smaller: dict):
    body = {"messages": [{"role": "user", "content": [part]}]}

    assert read_content(make_variants(body, "image")[SMALL_MEDIA]) == [smaller]


def test_prompts_and_answers_differ_from_what_they_are():
    variants = make_variants(PICTURE, "image")

    assert read_content(variants[LONG_PROMPT])[-1]["words"] > 50
    assert read_content(variants[LONG_PROMPT])[:2] == read_content(PICTURE)
    assert [variants[name]["max_tokens"] for name in (SHORT_ANSWER, LONG_ANSWER)] == [7, 32]
    assert variants[SHORT_ANSWER]["ignore_eos"]
    plain = make_variants({"messages": [{"role": "user", "content": "Who is there?"}], "max_completion_tokens": 10})
    assert plain[LONG_ANSWER]["max_tokens"] == 16
    assert "max_completion_tokens" not in plain[LONG_ANSWER]
    assert read_content(plain[LONG_PROMPT])[0]["text"] == "Who is there?"


def test_the_most_frequent_request_of_a_type_has_variants_that_can_be_sent(tmp_path: Path):
    entries = [{"share": 1, "body": PICTURE}, {"share": 3, "body": PICTURE}]
    (tmp_path / "w.json").write_text(json.dumps({"requests": entries}))
    rare, often = read_workload(tmp_path / "w.json", make_vl_subject()).requests

    assert rare.variants == {}
    assert often.variants.keys() == {SMALL_MEDIA, MORE_MEDIA, LONG_PROMPT, SHORT_ANSWER, LONG_ANSWER}
    parts = read_content(json.loads(often.variants[MORE_MEDIA].body))
    images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert len({*images}) == 3
    assert json.loads(often.variants[MORE_MEDIA].short)["max_tokens"] == 1
