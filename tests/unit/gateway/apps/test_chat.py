"""Chats in a worker: outputs of nodes bypass the app, and outputs of the app pass through it."""

import asyncio

import msgspec
import numpy as np
import pytest

from omnibus.errors import AppFailed, DeadlineExceeded, ProtocolError
from omnibus.graph import HANDLE
from omnibus.task import ChatInput
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.streams import ItemStream, merge_streams
from tests.unit.gateway.apps.workers import Abacus, run_worker, wait_until_true, write_app

MEDIA = {HANDLE: {"id": 7, "generation": 3}, "modality": "image", "mime": "image/png", "sha256": "ab" * 32, "nbytes": 4}
ASKED = ChatInput(
    messages=msgspec.Raw(b'[{"role":"user","content":"look"}]'),
    media=(MEDIA,),
    modalities=("image",),
    params=msgspec.Raw(b'{"max_tokens":4}'),
)
CHAT = "app = App(model='poet')\nasync def serve(request: ChatInput) -> ChatOutput:\n"
SAID = "    said = await SAY(Media(media=request.media[0]))\n"


async def read_outputs(outputs: dict[str, ItemStream]) -> dict[str, list[Item]]:
    items_by_name: dict[str, list[Item]] = {name: [] for name in outputs}
    async for batch in merge_streams(outputs):
        for name, item in batch:
            items_by_name[name].append(item)
    return items_by_name


def item_texts(items: list[Item]) -> list[str]:
    return [item.data.get("text", "") for item in items]


async def test_outputs_of_nodes_never_pass_through_the_app(tmp_path):
    async with run_worker(
        write_app(tmp_path, CHAT + SAID + "    return ChatOutput(text=said.text, audio=said.audio)\n")
    ) as host:
        assert (host.description.route, host.description.model) == ("chat", "poet")
        run = Abacus()

        outputs = await host.invoke_chat(run, ASKED).wait_for_outputs()

        assert outputs == {"text": run.streams[0, 0, "text"], "audio": run.streams[0, 0, "audio"]}
        assert item_texts((await read_outputs(outputs))["text"]) == ["saw ", "image"]
        assert run.status == ""
        assert run.segments[0].nodes[0].inputs == {"media": MEDIA}


async def test_the_app_sees_the_request_that_the_gateway_made(tmp_path):
    text = (
        CHAT
        + "    return ChatOutput(text=repr([request.messages, request.modalities, request.params, request.voice, request.speech]))\n"
    )
    async with run_worker(write_app(tmp_path, text)) as host:
        (request_item,) = (await read_outputs(await host.invoke_chat(Abacus(), ASKED).wait_for_outputs()))["text"]

    assert request_item.data == {
        "text": "[[{'role': 'user', 'content': 'look'}], ('image',), {'max_tokens': 4}, '', None]"
    }


@pytest.mark.parametrize(
    ("expression", "expected_texts"),
    [
        ("'one'", ["one"]),
        ("said.text.transform(lambda part: part.text.upper())", ["SAW ", "IMAGE"]),
        ("said.text.transform(lambda part: part.model_copy(update={'text': part.text + '!'}))", ["saw !", "image!"]),
        ("await said.text", ["saw image"]),
        ("letters(said)", ["a", "b"]),
        ("TextChunk(text='whole')", ["whole"]),
        ("(await SPELL(Words(text='ab'))).letters", ["a", "b"]),
    ],
    ids=["str", "transformed", "chunks", "awaited", "iterator", "chunk", "letters"],
)
async def test_what_the_app_makes_is_pumped(tmp_path, expression, expected_texts):
    helper = "async def letters(said):\n    for letter in 'ab':\n        yield letter\n"
    async with run_worker(
        write_app(tmp_path, helper + CHAT + SAID + f"    return ChatOutput(text={expression})\n")
    ) as host:
        outputs = await host.invoke_chat(Abacus(), ASKED).wait_for_outputs()

        assert item_texts((await read_outputs(outputs))["text"]) == expected_texts


async def test_chunks_that_pass_through_the_app_keep_how_they_end(tmp_path):
    def fill_stream(name, stream):
        stream.add_item(Item({"text": "a", "ids": [1]}))
        stream.add_item(Item({"finish_reason": "length", "usage": {"completion_tokens": 1}}))
        stream.end()

    async with run_worker(
        write_app(tmp_path, CHAT + SAID + "    return ChatOutput(text=said.text.transform(lambda part: part))\n")
    ) as host:
        run = Abacus()
        run.fills = fill_stream

        items = (await read_outputs(await host.invoke_chat(run, ASKED).wait_for_outputs()))["text"]

    assert [item.data for item in items] == [
        {"text": "a", "ids": [1]},
        {"finish_reason": "length", "usage": {"completion_tokens": 1}},
    ]


@pytest.mark.parametrize(
    ("expression", "rate"),
    [
        ("np.ones(4)", 24000),
        ("Audio(rate=8000, array=np.ones(4, np.float32))", 8000),
        ("said.audio.transform(lambda part: part.model_copy(update={'array': np.ones(4)}))", 16000),
    ],
    ids=["array", "audio", "transformed"],
)
async def test_sound_that_the_app_makes_is_pumped(tmp_path, expression, rate):
    async with run_worker(
        write_app(tmp_path, CHAT + SAID + f"    return ChatOutput(text=said.text, audio={expression})\n")
    ) as host:
        run = Abacus()

        outputs = await host.invoke_chat(run, ASKED).wait_for_outputs()
        (item,) = (await read_outputs(outputs))["audio"]

    assert outputs["text"] is run.streams[0, 0, "text"]
    assert item.data == {"rate": rate}
    assert item.array.dtype == np.float32
    assert item.array.tolist() == [1.0] * 4


async def test_an_output_that_the_app_has_read_of_is_not_handed_on(tmp_path):
    text = (
        CHAT
        + SAID
        + "    first = await anext(aiter(said.text))\n    return ChatOutput(text=first.text, audio=said.audio)\n"
    )
    async with run_worker(write_app(tmp_path, text)) as host:
        run = Abacus()

        outputs = await host.invoke_chat(run, ASKED).wait_for_outputs()

        assert outputs["audio"] is run.streams[0, 0, "audio"]
        assert item_texts((await read_outputs(outputs))["text"]) == ["saw "]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("'just text'", "`serve` must return a `ChatOutput`, not a value of type str"),
        ("ChatOutput(text=3)", "the answer's text contains a value of type int"),
        ("ChatOutput(text='a', audio='b')", "the answer's audio contains a value of type str"),
        ("ChatOutput(text='a', audio=np.ones((2, 2)))", "audio contains a value of type ndarray"),
        ("ChatOutput(text='a', audio=np.ones(2, np.int16))", "audio contains a value of type ndarray"),
        (
            "ChatOutput(text='a', audio=Audio(rate=1, array=np.ones(2)))",
            "the app sample_app returned invalid audio: .*rate",
        ),
        (
            "ChatOutput(text=TextChunk(finish_reason='bored'))",
            "the app sample_app returned invalid text: .*finish_reason",
        ),
        ("ChatOutput(text=None)", "without text and audio"),
    ],
)
async def test_an_answer_that_no_client_could_be_sent_is_a_fault_of_the_app(tmp_path, expression, fault):
    async with run_worker(write_app(tmp_path, CHAT + f"    return {expression}\n")) as host:
        pid = host.pid

        with pytest.raises(AppFailed, match=fault):
            await read_outputs(await host.invoke_chat(Abacus(), ASKED).wait_for_outputs())

        assert host.pid == pid


async def test_a_failure_before_the_answer_ends_the_run(tmp_path):
    async with run_worker(write_app(tmp_path, CHAT + "    raise ValueError\n")) as host:
        run = Abacus()

        with pytest.raises(AppFailed):
            await host.invoke_chat(run, ASKED).wait_for_outputs()

        assert run.status == "failed"


async def test_a_failure_in_an_output_reaches_who_reads_it_and_leaves_the_run_to_them(tmp_path):
    helper = "async def letters():\n    yield 'a'\n    raise ValueError('here')\n"
    async with run_worker(write_app(tmp_path, helper + CHAT + "    return ChatOutput(text=letters())\n")) as host:
        run = Abacus()
        outputs = await host.invoke_chat(run, ASKED).wait_for_outputs()

        with pytest.raises(AppFailed, match="ValueError"):
            await read_outputs(outputs)

        assert run.status == ""


async def test_an_output_that_the_app_makes_is_made_no_faster_than_it_is_read(tmp_path):
    text = """
    MADE = []
    async def letters():
        for _ in range(20):
            MADE.append(1)
            yield "x" * 60_000
    """
    serve = "    return ChatOutput(text=str(len(MADE)) if request.voice else letters())\n"
    async with run_worker(write_app(tmp_path, text.replace("\n    ", "\n") + CHAT + serve)) as host:

        async def count_made() -> int:
            outputs_by_name = await read_outputs(
                await host.invoke_chat(Abacus(), ChatInput(messages=[], voice="v")).wait_for_outputs()
            )
            return int(item_texts(outputs_by_name["text"])[0])

        outputs = await host.invoke_chat(Abacus(), ASKED).wait_for_outputs()
        while await count_made() < 5:
            pass

        assert [await count_made() for _ in range(5)] == [5] * 5
        assert len((await read_outputs(outputs))["text"]) == 20


async def test_closing_a_chat_ends_what_the_app_still_makes(tmp_path):
    text = "STATE = []\nasync def forever():\n    try:\n        yield 'a'\n        await asyncio.sleep(1000)\n    finally:\n        STATE.append('ended')\n"
    serve = "    return ChatOutput(text=repr(STATE) if request.voice else forever())\n"
    async with run_worker(write_app(tmp_path, text + CHAT + serve)) as host:
        run = Abacus()
        call = host.invoke_chat(run, ASKED)
        outputs = await call.wait_for_outputs()
        await outputs["text"].next_items()

        call.close()

        async def read_state() -> str:
            return item_texts(
                (
                    await read_outputs(
                        await host.invoke_chat(Abacus(), ChatInput(messages=[], voice="v")).wait_for_outputs()
                    )
                )["text"]
            )[0]

        while await read_state() != "['ended']":
            pass
        assert run.status == ""


async def test_a_deadline_reaches_who_reads_what_the_app_makes(tmp_path):
    helper = "async def forever():\n    yield 'a'\n    await asyncio.sleep(1000)\n"
    async with run_worker(write_app(tmp_path, helper + CHAT + "    return ChatOutput(text=forever())\n")) as host:
        outputs = await host.invoke_chat(Abacus(2.0), ASKED).wait_for_outputs()

        with pytest.raises(DeadlineExceeded, match="sample_app"):
            await read_outputs(outputs)


@pytest.mark.parametrize(
    "changes",
    [
        {"sha256": "cd" * 32},
        {"modality": "video"},
        {HANDLE: {"id": 8, "generation": 3}},
        {HANDLE: {"id": 7, "generation": 4}},
    ],
    ids=["hash", "modality", "id", "generation"],
)
async def test_media_that_were_not_given_to_the_request_are_refused(tmp_path, changes):
    text = (
        CHAT
        + f"    said = await SAY(Media(media={{**request.media[0], **{changes!r}}}))\n    return ChatOutput(text=said.text)\n"
    )
    async with run_worker(write_app(tmp_path, text)) as host:
        run = Abacus()

        with pytest.raises(ProtocolError, match="names media that this request was not given"):
            await host.invoke_chat(run, ASKED).wait_for_outputs()

        assert run.segments == {}


async def test_media_in_a_request_that_is_no_chat_are_refused(tmp_path):
    text = "async def serve(request: dict):\n    return await (await SAY(Media(media=request))).text\n"
    async with run_worker(write_app(tmp_path, text)) as host:
        with pytest.raises(ProtocolError, match="names media"):
            await host.invoke(Abacus(), msgspec.json.encode(MEDIA)).read_answer()


async def test_long_messages_are_media_too(tmp_path):
    text = CHAT + "    return ChatOutput(text=(await SAY(Media(media=request.messages))).text)\n"
    async with run_worker(write_app(tmp_path, text)) as host:
        run = Abacus()

        await host.invoke_chat(run, ChatInput(messages=MEDIA)).wait_for_outputs()

        assert run.segments[0].nodes[0].inputs == {"media": MEDIA}


async def test_a_chat_can_also_be_asked_as_json(tmp_path):
    text = CHAT + "    out = await SPELL(Words(text=request.messages))\n    return ChatOutput(text=out.letters)\n"
    async with run_worker(write_app(tmp_path, text)) as host:
        answer = await host.invoke(Abacus(), b'{"messages": "ab"}').read_answer()

    assert answer == b'{"text":"ab","audio":null}'


async def test_a_worker_that_dies_after_it_named_its_nodes_outputs_takes_nothing_with_it(tmp_path):
    async with run_worker(write_app(tmp_path, CHAT + SAID + "    return ChatOutput(text=said.text)\n")) as host:
        run, streams = Abacus(), {}
        run.fills = streams.__setitem__
        outputs = await host.invoke_chat(run, ASKED).wait_for_outputs()
        await wait_until_true(lambda: not host._process.requests)

        host._process.kill("a test")
        await wait_until_true(lambda: not host.is_ready)
        streams["text"].add_item(Item({"text": "still"}))
        streams["text"].end()

        assert item_texts((await read_outputs(outputs))["text"]) == ["still"]
        await asyncio.sleep(0)
        assert run.failure is None
