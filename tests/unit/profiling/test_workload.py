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
from tests.unit.profiling.subjects import omni, vl

CSV = """t_s,client,num_images,image_tokens,text_tokens,output_tokens,has_video,has_audio,audio_output
0.0,7,2,200,7,21,0,0,0
0.5,7,0,0,30,5,1,1,1
"""


def chat(*content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], **more}


def written(tmp_path: Path, *bodies: dict[str, Any], shares: tuple[float, ...] = ()) -> Path:
    entries: list[dict[str, Any]] = [{"body": body} for body in bodies]
    for entry, share in zip(entries, shares, strict=False):
        entry["share"] = share
    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"requests": entries}))
    return path


def read(tmp_path: Path, *bodies: dict[str, Any], subject: Subject | None = None, **more: Any) -> workload.Workload:
    return workload.read_workload(written(tmp_path, *bodies, **more), subject or omni())


def parts(request: workload.WorkloadRequest) -> list[dict[str, Any]]:
    return json.loads(request.body)["messages"][0]["content"]


def data(part: dict[str, Any]) -> bytes:
    return base64.b64decode(part[part["type"]]["url"].partition(",")[2])


def test_shares_sum_to_one_and_make_the_types(tmp_path: Path):
    found = read(tmp_path, chat("hello"), chat({"image": [56, 56]}), chat("hi"), shares=(3, 6, 1), subject=vl())

    assert [request.share for request in found.requests] == pytest.approx([0.3, 0.6, 0.1])
    assert found.type_shares == pytest.approx({"thinker": 0.4, "vision+thinker": 0.6})


def test_requests_without_a_share_are_left_out(tmp_path: Path):
    assert len(read(tmp_path, chat("a"), chat("b"), shares=(0, 1)).requests) == 1


def test_what_is_sent_is_taken_by_the_gateway_and_streams(tmp_path: Path):
    spoken = chat("say it", modalities=["text", "audio"], audio={"voice": "alloy", "format": "mp3"}, max_tokens=9)
    [request] = read(tmp_path, spoken).requests
    whole, short = parse_chat(request.body), parse_chat(request.short)

    assert (whole.model, whole.stream, whole.wants_usage, whole.token_limit) == ("m", True, True, 9)
    assert whole.audio.format == "wav"
    assert (short.token_limit, short.audio.max_tokens) == (1, 1)
    assert request.kind == "thinker+talker+vocoder"


def test_media_of_a_size_are_made(tmp_path: Path):
    [request] = read(
        tmp_path, chat({"image": [90, 60]}, {"audio": 0.5}, {"video": [64, 48, 1.5]}, {"words": 7})
    ).requests
    image, sound, film, text = parts(request)

    assert Image.open(io.BytesIO(data(image))).size == (90, 60)
    with wave.open(io.BytesIO(data(sound))) as file:
        assert file.getnframes() == 8000
    with av.open(io.BytesIO(data(film))) as file:
        assert sum(1 for _ in file.decode(video=0)) == 6
    assert len(text["text"].split()) == 7
    assert set(request.media) == {"image", "audio", "video"}
    parse_chat(request.body)


def test_files_are_sent_as_they_are(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"jpeg")
    named, usual, url = read(
        tmp_path,
        chat({"image": "a.jpg"}),
        chat({"type": "image_url", "image_url": {"url": "a.jpg", "detail": "low"}}),
        chat({"type": "image_url", "image_url": {"url": "https://example.org/a.jpg"}}),
    ).requests

    assert data(parts(named)[0]) == b"jpeg"
    assert parts(named)[0]["image_url"]["url"].startswith("data:image/jpeg;")
    assert parts(usual)[0]["image_url"]["detail"] == "low"
    assert data(parts(usual)[0]) == b"jpeg"
    assert parts(url)[0]["image_url"]["url"] == "https://example.org/a.jpg"


def test_the_same_seed_makes_the_same_requests(tmp_path: Path):
    path = written(tmp_path, chat({"image": [90, 60]}, {"words": 20}))
    first, again, other = (workload.read_workload(path, vl(), RowSampling(seed=seed)) for seed in (1, 1, 2))

    assert first == again
    assert first.requests[0].body != other.requests[0].body
    assert first.label != other.label


def test_larger_requests_have_a_larger_size(tmp_path: Path):
    bodies = [
        chat({"words": 10}, max_tokens=5),
        chat({"words": 30}, max_tokens=5),
        chat({"words": 10}, max_tokens=500),
        chat({"words": 10}, {"image": [1400, 1400]}, max_tokens=5),
    ]
    sizes = [request.size for request in read(tmp_path, *bodies).requests]

    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4


def rows(tmp_path: Path, subject: Subject, text: str = CSV, **more: Any) -> workload.Workload:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return workload.read_workload(path, subject, RowSampling(**more))


def test_rows_become_requests_of_their_sizes(tmp_path: Path):
    pictures, spoken = rows(tmp_path, omni()).requests
    wanted = parse_chat(pictures.body)

    assert [Image.open(io.BytesIO(data(part))).size for part in parts(pictures)[:2]] == [(280, 280)] * 2
    assert len(parts(pictures)[2]["text"].split()) == 7
    assert (wanted.token_limit, wanted.ignore_eos) == (21, True)
    assert pictures.kind == "vision+thinker"
    assert spoken.kind == "vision+audio+thinker+talker+vocoder"
    assert parse_chat(spoken.body).wants_audio


def test_what_a_model_does_not_take_is_left_out_and_said(tmp_path: Path):
    found = rows(tmp_path, vl())

    assert [request.kind for request in found.requests] == ["vision+thinker", "vision+thinker"]
    assert found.notes == (
        "1 of 2 requests ask for audio, which m lacks",
        "1 of 2 requests ask for audio output, which m lacks",
    )


def test_numbers_of_tokens_are_scaled(tmp_path: Path):
    pictures, _ = rows(tmp_path, omni(), scale=0.25).requests

    assert [Image.open(io.BytesIO(data(part))).size for part in parts(pictures)[:2]] == [(140, 140)] * 2
    assert len(parts(pictures)[2]["text"].split()) == 2
    assert parse_chat(pictures.body).token_limit == 6


def test_some_rows_are_taken_by_the_seed(tmp_path: Path):
    text = "text_tokens,output_tokens\n" + "".join(f"{n},1\n" for n in range(1, 101))
    some = [[request.where for request in rows(tmp_path, vl(), text, rows=5, seed=seed).requests] for seed in (1, 1, 2)]

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
        read(tmp_path, chat("fine"), body, subject=vl())

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
        workload.read_workload(tmp_path / name, vl())


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(BadRequest, match=r"nowhere.json cannot be read"):
        workload.read_workload(tmp_path / "nowhere.json", vl())
