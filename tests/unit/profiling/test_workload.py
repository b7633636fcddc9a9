"""Workloads from files: requests that the gateway accepts, in the requested sizes."""

import base64
import gzip
import io
import json
import wave
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from omnibus.errors import BadRequest
from omnibus.profiling import workload
from omnibus.profiling.csv_workload import RowSampling
from omnibus.profiling.measured_model import Subject
from omnibus_gateway.openai.parse import parse_chat
from tests.unit.profiling.subjects import make_omni_subject, make_vl_subject

CSV = """t_s,client,num_images,image_tokens,text_tokens,output_tokens,has_video,has_audio,audio_output
0.0,7,2,200,7,21,0,0,0
0.5,7,0,0,30,5,1,1,1
"""


def make_chat(*content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], **more}


def write_workload(tmp_path: Path, *bodies: dict[str, Any], shares: tuple[float, ...] = ()) -> Path:
    entries: list[dict[str, Any]] = [{"body": body} for body in bodies]
    for entry, share in zip(entries, shares, strict=False):
        entry["share"] = share
    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"requests": entries}))
    return path


def read_bodies(
    tmp_path: Path, *bodies: dict[str, Any], subject: Subject | None = None, **more: Any
) -> workload.Workload:
    return workload.read_workload(write_workload(tmp_path, *bodies, **more), subject or make_omni_subject())


def read_parts(request: workload.WorkloadRequest) -> list[dict[str, Any]]:
    return json.loads(request.body)["messages"][0]["content"]


def decode_data(part: dict[str, Any]) -> bytes:
    return base64.b64decode(part[part["type"]]["url"].partition(",")[2])


def test_shares_sum_to_one_and_make_the_types(tmp_path: Path):
    mix = read_bodies(
        tmp_path,
        make_chat("hello"),
        make_chat({"image": [56, 56]}),
        make_chat("hi"),
        shares=(3, 6, 1),
        subject=make_vl_subject(),
    )

    assert [request.share for request in mix.requests] == pytest.approx([0.3, 0.6, 0.1])
    assert mix.type_shares == pytest.approx({"thinker": 0.4, "vision+thinker": 0.6})


def test_requests_without_a_share_are_left_out(tmp_path: Path):
    assert len(read_bodies(tmp_path, make_chat("a"), make_chat("b"), shares=(0, 1)).requests) == 1


def test_what_is_sent_is_taken_by_the_gateway_and_streams(tmp_path: Path):
    speech_chat = make_chat(
        "say it", modalities=["text", "audio"], audio={"voice": "alloy", "format": "mp3"}, max_tokens=9
    )
    [request] = read_bodies(tmp_path, speech_chat).requests
    whole, short = parse_chat(request.body), parse_chat(request.short)

    assert (whole.model, whole.stream, whole.wants_usage, whole.token_limit) == ("m", True, True, 9)
    assert whole.audio.format == "wav"
    assert (short.token_limit, short.audio.max_tokens) == (1, 1)
    assert request.kind == "thinker+talker+vocoder"


def test_media_of_a_size_are_made(tmp_path: Path):
    [request] = read_bodies(
        tmp_path, make_chat({"image": [90, 60]}, {"audio": 0.5}, {"video": [64, 48, 1.5]}, {"words": 7})
    ).requests
    image, sound, film, text = read_parts(request)

    assert Image.open(io.BytesIO(decode_data(image))).size == (90, 60)
    with wave.open(io.BytesIO(decode_data(sound))) as file:
        assert file.getnframes() == 8000
    with av.open(io.BytesIO(decode_data(film))) as file:
        assert sum(1 for _ in file.decode(video=0)) == 6
    assert len(text["text"].split()) == 7
    assert set(request.media) == {"image", "audio", "video"}
    parse_chat(request.body)


def test_files_are_sent_as_they_are(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"jpeg")
    named_request, usual, url = read_bodies(
        tmp_path,
        make_chat({"image": "a.jpg"}),
        make_chat({"type": "image_url", "image_url": {"url": "a.jpg", "detail": "low"}}),
        make_chat({"type": "image_url", "image_url": {"url": "https://example.org/a.jpg"}}),
    ).requests

    assert decode_data(read_parts(named_request)[0]) == b"jpeg"
    assert read_parts(named_request)[0]["image_url"]["url"].startswith("data:image/jpeg;")
    assert read_parts(usual)[0]["image_url"]["detail"] == "low"
    assert decode_data(read_parts(usual)[0]) == b"jpeg"
    assert read_parts(url)[0]["image_url"]["url"] == "https://example.org/a.jpg"


def test_the_same_seed_makes_the_same_requests(tmp_path: Path):
    path = write_workload(tmp_path, make_chat({"image": [90, 60]}, {"words": 20}))
    first, again, other = (
        workload.read_workload(path, make_vl_subject(), RowSampling(seed=seed)) for seed in (1, 1, 2)
    )

    assert first == again
    assert first.requests[0].body != other.requests[0].body
    assert first.label != other.label


def test_larger_requests_have_a_larger_size(tmp_path: Path):
    bodies = [
        make_chat({"words": 10}, max_tokens=5),
        make_chat({"words": 30}, max_tokens=5),
        make_chat({"words": 10}, max_tokens=500),
        make_chat({"words": 10}, {"image": [1400, 1400]}, max_tokens=5),
    ]
    sizes = [request.size for request in read_bodies(tmp_path, *bodies).requests]

    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4


def read_rows(tmp_path: Path, subject: Subject, text: str = CSV, **more: Any) -> workload.Workload:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return workload.read_workload(path, subject, RowSampling(**more))


def test_rows_become_requests_of_their_sizes(tmp_path: Path):
    pictures, speech_request = read_rows(tmp_path, make_omni_subject()).requests
    chat_request = parse_chat(pictures.body)

    assert [Image.open(io.BytesIO(decode_data(part))).size for part in read_parts(pictures)[:2]] == [(280, 280)] * 2
    assert len(read_parts(pictures)[2]["text"].split()) == 7
    assert (chat_request.token_limit, chat_request.ignore_eos) == (21, True)
    assert pictures.kind == "vision+thinker"
    assert speech_request.kind == "vision+audio+thinker+talker+vocoder"
    assert parse_chat(speech_request.body).wants_audio


def test_what_a_model_does_not_take_is_left_out_and_said(tmp_path: Path):
    mix = read_rows(tmp_path, make_vl_subject())

    assert [request.kind for request in mix.requests] == ["vision+thinker", "vision+thinker"]
    assert mix.notes == (
        "1 of 2 requests ask for audio, which m lacks",
        "1 of 2 requests ask for audio output, which m lacks",
    )


def test_numbers_of_tokens_are_scaled(tmp_path: Path):
    pictures, _ = read_rows(tmp_path, make_omni_subject(), scale=0.25).requests

    assert [Image.open(io.BytesIO(decode_data(part))).size for part in read_parts(pictures)[:2]] == [(140, 140)] * 2
    assert len(read_parts(pictures)[2]["text"].split()) == 2
    assert parse_chat(pictures.body).token_limit == 6


def test_some_rows_are_taken_by_the_seed(tmp_path: Path):
    text = "text_tokens,output_tokens\n" + "".join(f"{n},1\n" for n in range(1, 101))
    some = [
        [request.where for request in read_rows(tmp_path, make_vl_subject(), text, rows=5, seed=seed).requests]
        for seed in (1, 1, 2)
    ]

    assert len(some[0]) == 5
    assert some[0] == some[1] != some[2]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (
            {"messages": [{"role": "user", "content": [{"image": [0, 5]}]}]},
            "the size of image must be 2 numbers above 0",
        ),
        ({"messages": [{"role": "user", "content": [{"image": "missing.png"}]}]}, "missing.png cannot be read"),
        ({"messages": [{"role": "user", "content": [{"smell": 1}]}]}, "a part of content must be"),
        ({"messages": [{"role": "user"}]}, "is not a chat request"),
        ({"prompt": "hello"}, "is not a chat request"),
        ({"messages": [{"role": "user", "content": [{"audio": 1}]}]}, "m does not take audio"),
        ({"messages": [{"role": "user", "content": "x"}], "modalities": ["audio"]}, "m has no audio output"),
    ],
)
def test_a_request_that_is_none_is_named(tmp_path: Path, body: dict[str, Any], fault: str):
    with pytest.raises(BadRequest, match=fault) as caught:
        read_bodies(tmp_path, make_chat("fine"), body, subject=make_vl_subject())

    assert "requests[1]" in caught.value.message


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.json", "no json", "must be JSON"),
        ("a.json", "{}", "must be JSON"),
        ("a.json", '{"requests": []}', "has no requests"),
        (
            "a.json",
            '{"requests": [{"share": 0, "body": {"messages": [{"role": "user", "content": "x"}]}}]}',
            "no requests",
        ),
        ("a.json", '{"requests": [{"share": -1, "body": {}}]}', "0 or more"),
        ("a.json", '{"requests": [7]}', "must have a `body`"),
        ("a.csv", "t_s,client\n1,2\n", "none of the columns"),
        ("a.csv", "text_tokens\nmany\n", "line 2"),
        ("a.csv", "text_tokens\n", "has no requests"),
        ("a.csv.gz", "text_tokens\n5\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_workload_is_said_so(tmp_path: Path, name: str, text: str, fault: str):
    (tmp_path / name).write_text(text)

    with pytest.raises(BadRequest, match=fault):
        workload.read_workload(tmp_path / name, make_vl_subject())


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(BadRequest, match=r"nowhere.json cannot be read"):
        workload.read_workload(tmp_path / "nowhere.json", make_vl_subject())
