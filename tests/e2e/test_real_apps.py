"""Apps on trained models of packages: an assistant by voice, receipts, and search by meaning. Also ``demo --real``.

One system serves all of them, as ``omnibus up --real`` does with a profile: components share the processes of a plan.
"""

import base64
import io
import json
import os
import re
import subprocess
import wave
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from omnibus.bus import subjects
from omnibus.cli import demo_real
from omnibus.cli.demo_media import draw_receipt
from omnibus.cluster.presence import replica_counts
from omnibus.process.spec import PACKAGE_PATH
from omnibus.profile import ModelProfile, OptionProfile, RoleCost, TypeProfile, encode_profile
from omnibus.up.real_models import REAL_APPS, REAL_MODELS, real_models, real_settings
from tests.e2e import warm
from tests.e2e.system import ROOT, System, start_system

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(600)]

SPOKEN: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "joe", "format": "wav"}}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    flags, directory = [flag for app in REAL_APPS for flag in ("--app", app)], tmp_path_factory.mktemp("real")
    path = directory / "apps.profile.json"
    path.write_bytes(encode_profile(make_profile()))
    declarations = json.loads(real_models(profile=str(path)))
    models = declarations.pop("models")
    with start_system(directory, models, *flags, more=declarations, **real_settings()) as new_system:
        yield new_system


def make_profile() -> ModelProfile:
    """Return a profile with seconds of one core, as ``omnibus profile --real`` measured them."""
    seconds = {
        "assistant": {"recognize-speech": 0.6, "smollm2": 1.3, "speak-text": 1.0},
        "receipt": {"smollm2": 1.8, "read-image": 1.2},
        "search": {"minilm": 0.03},
    }
    components = tuple(dict.fromkeys(part for each in seconds.values() for part in each))
    kinds = {app: "+".join(part for part in components if part in each) for app, each in seconds.items()}
    options = {
        part: OptionProfile(
            (part,),
            gpu="cpu",
            work=tuple(
                RoleCost((part,), each[part], kinds[app], each[part]) for app, each in seconds.items() if part in each
            ),
        )
        for part in components
    }
    types = {kinds[app]: TypeProfile(tuple(each), 1 / len(seconds)) for app, each in seconds.items()}
    return ModelProfile("apps", "python", components, types, options)


@pytest.fixture
async def client(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    async with system.client() as new_client:
        yield new_client


async def generate_speech(client: openai.AsyncOpenAI, text: str) -> bytes:
    answer = await client.audio.speech.create(model="assistant", voice="joe", input=text, response_format="wav")
    return answer.content


async def recognize_speech(client: openai.AsyncOpenAI, wav: bytes) -> str:
    answer = await client.audio.transcriptions.create(model="assistant", file=("speech.wav", wav))
    return answer.text


def find_words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def make_audio_messages(wav: bytes) -> list[Any]:
    audio = {"data": base64.b64encode(wav).decode(), "format": "wav"}
    return [{"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}]


def make_image_messages(png: bytes) -> list[Any]:
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


async def test_components_of_apps_and_models_share_the_processes_of_a_plan(system: System) -> None:
    async with system.store() as store:
        plan = await store.plan()

    assert plan is not None
    processes = plan.models["apps"].options
    places = json.loads(real_models(profile="any"))["gpus"]["cpu"]["count"]
    assert {part for each in processes.values() for part in each.components} == {*make_profile().components}
    assert sum(each.replicas for each in processes.values()) <= places < len(make_profile().components)
    for model in REAL_MODELS:
        assert all(option.of.startswith("apps/") for option in plan.models[model].options.values())
    assert {name for name, model in plan.models.items() if replica_counts({name: model})} == {"apps"}
    assert plan.explain["planned"]["models"]["apps"]["capacity"] > 0


async def test_a_spoken_question_is_answered_by_voice_before_the_text_has_ended(
    system: System, client: openai.AsyncOpenAI
) -> None:
    question = await generate_speech(client, demo_real.QUESTION)

    stream = await client.chat.completions.create(
        model="assistant", messages=make_audio_messages(question), stream=True, temperature=0, max_tokens=45, **SPOKEN
    )
    text, audio, at_first_audio = "", bytearray(), ""
    async for chunk in stream:
        delta: Any = chunk.choices[0].delta if chunk.choices else None
        text += (delta and delta.content) or ""
        if (part := getattr(delta, "audio", None)) and part.data:
            at_first_audio = at_first_audio or text
            audio += base64.b64decode(part.data)

    assert "Paris" in text
    assert 0 < len(at_first_audio) < len(text)
    assert re.search(r"[.!?]", at_first_audio), "a whole sentence was written"
    words, transcript = find_words(text), find_words(await recognize_speech(client, bytes(audio)))
    assert len({*words} & {*transcript}) / len({*words}) > 0.8
    await system.ledger_is_empty()


async def test_the_assistant_hears_what_is_asked_and_keeps_to_instructions_of_the_client(
    client: openai.AsyncOpenAI,
) -> None:
    question = await generate_speech(client, "What is the capital of France?")

    transcript = await recognize_speech(client, question)
    reply = await client.chat.completions.create(
        model="assistant", messages=make_audio_messages(question), temperature=0
    )
    text_reply = await client.chat.completions.create(
        model="assistant", messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    )

    assert find_words(transcript) == ["what", "is", "the", "capital", "of", "france"]
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.choices[0].message.content == text_reply.choices[0].message.content
    assert reply.choices[0].message.audio is None


async def test_the_answer_is_replayed_sample_by_sample(system: System, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.with_raw_response.create(
        model="assistant", messages=[{"role": "user", "content": "Say hello."}], temperature=0, max_tokens=20, **SPOKEN
    )

    async with system.bus() as bus:
        body, _ = await system.record(answer.headers["x-request-id"])
        *_, last = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, 60)]

    assert answer.parse().choices[0].message.audio is not None
    assert (last["status"], last["identical"]) == ("done", True)


async def test_a_chat_that_is_too_long_is_a_400(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the chat is too long"):
        await client.chat.completions.create(
            model="assistant", messages=[{"role": "user", "content": "word " * 5000}], temperature=0
        )


@pytest.mark.parametrize(
    ("lines", "total"),
    [
        ((("BOOK STORE", ""), ("2025-01-03", ""), ("Novel", "12.00"), ("Pencil", "0.80"), ("Tax", "1.02")), 13.82),
        ((("HARDWARE 24", ""), ("2026-02-01", ""), ("Hammer", "15.00"), ("Nails", "4.25")), 19.25),
    ],
    ids=["with-tax", "digits-in-the-name"],
)
async def test_the_total_of_a_receipt_is_found(
    client: openai.AsyncOpenAI, lines: tuple[tuple[str, str], ...], total: float
) -> None:
    messages = make_image_messages(draw_receipt(lines, total))

    answer = await client.chat.completions.create(model="receipt", messages=messages, temperature=0)

    assert json.loads(answer.choices[0].message.content or "") == {
        "shop": lines[0][0],
        "date": lines[1][0],
        "total": total,
    }


async def test_a_receipt_is_written_by_the_schema_of_the_request(client: openai.AsyncOpenAI) -> None:
    properties = {"currency": {"enum": ["EUR", "USD"]}, "paid": {"type": "number"}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    wish: Any = {"type": "json_schema", "json_schema": {"name": "paid", "schema": schema}}

    answer = await client.chat.completions.create(
        model="receipt", messages=make_image_messages(draw_receipt(demo_real.RECEIPT, demo_real.TOTAL)), temperature=0,
        response_format=wish,
    )  # fmt: skip

    assert json.loads(answer.choices[0].message.content or "")["currency"] in ("EUR", "USD")


async def test_texts_are_found_by_meaning(system: System, client: openai.AsyncOpenAI) -> None:
    async with system.http() as http:
        body = {"query": demo_real.QUERY, "texts": demo_real.SENTENCES}
        results = (await http.post("/v1/apps/search/invoke", json=body)).json()
    vectors = await client.embeddings.create(model="search", input=[demo_real.QUERY, results[0]["text"]])

    assert "cake" in results[0]["text"]
    assert results[0]["score"] > 0.3 > results[1]["score"] >= results[2]["score"]
    assert not {*find_words(demo_real.QUERY)} & {*find_words(results[0]["text"])}
    query, best = (item.embedding for item in vectors.data)
    assert sum(a * b for a, b in zip(query, best, strict=True)) == pytest.approx(results[0]["score"], abs=1e-4)


def test_the_demo_speaks_reads_a_total_and_finds_a_meaning(tmp_path: Path) -> None:
    process = subprocess.run(
        warm.omnibus_command("demo", "--real", "--out", "answer.wav"),
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{PACKAGE_PATH}", "XDG_RUNTIME_DIR": str(tmp_path)},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )

    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    answer = lines[lines.index("asking assistant with this audio") + 1]
    (transcript,) = re.findall(r"^recognized in answer.wav: (.+)$", process.stdout, re.MULTILINE)
    words = {*find_words(answer)}
    assert "paris" in words
    assert len(words & {*find_words(transcript)}) / len(words) > 0.8
    assert f"recognized in it: {demo_real.QUESTION}" in lines
    seconds = dict(re.findall(r"(first audio|last text) after ([\d.]+) s", process.stdout))
    assert float(seconds["first audio"]) < float(seconds["last text"])
    assert f"expected total: {demo_real.TOTAL:.2f}: right" in lines
    results = re.findall(r"^  (-?[\d.]+)  (\w.+)$", process.stdout, re.MULTILINE)
    assert results[0][1] == demo_real.SENTENCES[1]
    assert "identical to the recorded answer" in lines
    for component in ("recognize-speech", "thinker", "speak-text"):
        assert re.search(rf"^ +\[\d\] {component} +\|.*█.*\|", process.stdout, re.MULTILINE)
    for licence in ("Apache-2.0", "MIT", "CC0-1.0"):
        assert licence in process.stdout
    with wave.open(io.BytesIO((tmp_path / "answer.wav").read_bytes())) as file:
        assert file.getframerate() == 22_050
        assert file.getnframes() > 3 * 22_050
