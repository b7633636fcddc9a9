"""Services survive hostile messages: a gateway, its executors, and a sidecar.

They keep serving, and nothing is left.
"""

import asyncio
import json
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from omnibus.bus import subjects
from omnibus.errors import OmnibusError
from omnibus.tensors.handle import Handle
from omnibus.tensors.protocol import FRAME_BYTES, SidecarFrame, Verb, encode_frame
from tests.fuzz import corpus
from tests.fuzz.mutate import EDGES, JUNK, NO_JSON, make_bodies, mutate_bytes, spoil_document
from tests.fuzz.profile import limit_examples
from tests.golden import corpus as golden
from tests.unit.gateway.background import Running
from tests.unit.gateway.house import OMNI, read_chat_answer
from tests.unit.sidecar import node as nodes

# The bus


@pytest.fixture(scope="module")
def running_services(tmp_path_factory: pytest.TempPathFactory, valkey_url: str) -> Iterator[Running]:
    services = Running(tmp_path_factory.mktemp("bus"), valkey_url)
    yield services
    services.close()


class Complaints(logging.Handler):
    """Exceptions outside the tree of errors that services logged."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(record.exc_info[1], OmnibusError):
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    handler = Complaints()
    logging.getLogger().addHandler(handler)
    yield handler.seen
    logging.getLogger().removeHandler(handler)


MESSAGES = [path.read_bytes().rstrip(b"\n") for path in golden.list_messages()]
INVOCATIONS = list(golden.read_invocations().values())


def subject_names(home: Any) -> list[str]:
    """Subjects with a listener, and some similar ones."""
    executor = f"{OMNI.replace('.', '_')}-M-0"
    task = next(iter(home.place.executors[executor].identity.tasks))
    reply = home.dispatcher.reply
    return [
        subjects.task_subject(task),
        subjects.task_subject(task, executor),
        subjects.edge_subject(executor),
        f"{subjects.no_responders_prefix(executor)}.x",
        reply,
        f"{reply}.x",
        f"{reply}.a.1.b",
        f"{reply}.a.b.c.d",
        subjects.refused_subject("gw", "gw-0-1", 0, executor),
        subjects.end_subject("gw-0-1"),
        *(subjects.event_subject(name) for name in ("executor", "gateway", "census", "plan", "gone", "load")),
    ]


def test_hostile_messages_harm_neither_gateway_nor_executors(running_services: Running, complaints: list[str]):
    home = running_services.home
    names = subject_names(home)
    message = make_bodies(MESSAGES) | make_bodies(INVOCATIONS) | JUNK.map(lambda value: json.dumps(value).encode())

    async def publish_batch(batch: list[tuple[str, bytes, str]]) -> None:
        for subject, body, reply in batch:
            if len(body) < 64 << 10:
                home.bus.publish(subject, body, reply=reply)
        await asyncio.sleep(0)
        home.bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")

    @limit_examples(120, cost=4)
    @given(
        st.lists(
            st.tuples(st.sampled_from(names), message, st.sampled_from(["", "omnibus.reply.nobody", names[4]])),
            min_size=1,
            max_size=8,
        )
    )
    def any_batch(batch: list[tuple[str, bytes, str]]) -> None:
        complaints.clear()
        running_services.do(publish_batch(batch))
        answer = running_services.do(home.ask(OMNI, "hello there"))
        assert read_chat_answer(answer).startswith("You said hello there")
        assert complaints == [], batch

    any_batch()
    running_services.do(home.emptied())


def for_here(home: Any, document: dict[str, Any]) -> dict[str, Any]:
    """An invocation that these executors accept: a chat of one component."""
    executor = home.place.executors[f"{OMNI.replace('.', '_')}-M-0"]
    task, component = next((task, name) for task, name in executor.identity.tasks.items() if name == "thinker")
    inputs = {"messages": [{"role": "user", "content": "hi"}], "items": [], "params": {"max_tokens": 4, "say": None}}
    node = {"task": task, "component": component, "inputs": inputs, "digest": "0" * 16, "uses": []}
    changes = {"nodes": [node], "outputs": [[0, "text"]], "route": [executor.identity.id], "options": ["M"]}
    return {**document, **changes, "model": OMNI, "deadline": 4e9, "reply": subjects.reply_subject("nobody")}


def test_a_hostile_invocation_ends_or_runs_and_holds_nothing_once_it_is_ended(running_services: Running):
    home = running_services.home
    good = for_here(home, json.loads(INVOCATIONS[0]))
    task, executor = good["nodes"][0]["task"], good["route"][0]

    async def publish_invocation(body: bytes) -> None:
        home.bus.publish(subjects.task_subject(task, executor), body)
        await asyncio.sleep(0)
        if isinstance(document := json.loads(body), dict) and isinstance(id := document.get("id"), str):
            end = json.dumps({"v": 1, "msgs": [{"t": "end", "inv": id, "status": "cancelled", "attempt": 99}]})
            home.bus.publish(subjects.edge_subject(executor), end.encode())

    @limit_examples(120, cost=4)
    @given(spoil_document([good]))
    def any_invocation(document: Any) -> None:
        running_services.do(publish_invocation(json.dumps(document).encode()))
        assert read_chat_answer(running_services.do(home.ask(OMNI, "hello"))).startswith("You said hello")

    any_invocation()
    running_services.do(home.emptied())


def test_a_hostile_replay_is_answered_with_one_problem_or_runs(running_services: Running):
    home = running_services.home
    good = json.dumps(for_here(home, json.loads(INVOCATIONS[0]))).encode()
    names = st.sampled_from(["omnibus-path", "omnibus-from", "omnibus-route", "omnibus-sandbox", "x"])
    headers = st.dictionaries(names, st.text(max_size=8), max_size=2)

    async def request_replay(body: bytes, more: dict[str, str]) -> list[Any]:
        return [json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, body, 20.0, more)]

    @corpus.try_saved("replays", headers={})
    @limit_examples(100, cost=4)
    @given(data=make_bodies([good, *INVOCATIONS]), headers=headers)
    def any_replay(data: bytes, headers: dict[str, str]) -> None:
        with corpus.save_failing("replays", data):
            parts = running_services.do(request_replay(data, headers))
            assert parts
            assert parts[-1]["status"] in ("done", "failed")
            assert parts[-1]["status"] == "done" or parts[-1]["problem"]["code"]
            assert parts[-1].get("problem", {}).get("code") != "internal_error", parts[-1]

    any_replay()
    running_services.do(home.emptied())


# HTTP


def nest_text(depth: int, opening: str, closing: str, inside: str = "1") -> str:
    return opening * depth + inside + closing * depth


#: Values that cost more than their length, each of some hundred kilobytes.
LARGE = {
    "many lists": "[" + ",".join(["[]"] * 200_000) + "]",
    "many objects": "[" + ",".join(["{}"] * 150_000) + "]",
    "many names": "{" + ",".join(f'"{number}":0' for number in range(60_000)) + "}",
    "one name again and again": "{" + ",".join(['"a":0'] * 100_000) + "}",
    "deep lists": nest_text(200_000, "[", "]"),
    "deep objects": nest_text(100_000, '{"a":', "}"),
    "a long number": "1" * 400_000,
    "a long fraction": "0." + "1" * 400_000,
    "a long exponent": "1e" + "9" * 400_000,
    "escapes": '"' + "\\u0041" * 60_000 + '"',
    "a long text": '"' + "a" * 400_000 + '"',
    "parts": "[" + ",".join(['{"type":"text","text":""}'] * 15_000) + "]",
}
FIELDS = [
    "metadata",
    "tools",
    "logit_bias",
    "stop",
    "messages",
    "user",
    "model",
    "audio",
    "seed",
    "temperature",
    "unknown",
]


@pytest.mark.parametrize("name", LARGE)
def test_a_body_that_costs_more_than_its_length_is_refused_typed(running_services: Running, name: str):
    for field in FIELDS:
        fine = '{"model":"nope","messages":[{"role":"user","content":"hi"}],"' + f'{field}":{LARGE[name]}}}'
        part = '{"model":"nope","messages":[{"role":"user","content":' + LARGE[name] + "}]}"
        for body in (fine, part):
            answer = running_services.do(running_services.home.http.post("/v1/chat/completions", content=body.encode()))
            assert 400 <= answer.status_code < 500, answer.text[:300]
            assert len(answer.content) < 4096
            assert answer.json()["error"]["code"]


@pytest.mark.parametrize("path", ["chat/completions", "images/generations", "audio/speech", "embeddings", "videos"])
def test_what_is_no_json_is_refused_typed(running_services: Running, path: str):
    for body in [*NO_JSON, b'{"model":"\xff"}', b'{"model":"\\ud800"}', b'{"model":"a\\u0000b"}']:
        answer = running_services.do(running_services.home.http.post(f"/v1/{path}", content=body))
        assert 400 <= answer.status_code < 500, (body[:50], answer.text[:300])
        assert answer.json()["error"]["code"]


# The sidecar

_PLACES = st.integers(0, FRAME_BYTES - 1)
_NUMBERS = st.sampled_from([abs(each) % 2**64 for each in EDGES]) | st.integers(0, 64)
_TIMES = st.sampled_from([0.0, -1.0, 1.0, 4e9, 1e300, float("inf"), float("nan")])
FRAMES = st.builds(
    lambda verb, request, readers, block, generation, nbytes, deadline, wait, text: encode_frame(
        SidecarFrame(verb, request, readers, block, generation, nbytes, 0, deadline, wait, text)
    ),
    st.sampled_from([int(verb) for verb in Verb]) | st.integers(0, 255),
    st.integers(0, 5), st.integers(0, 65535), _NUMBERS, _NUMBERS, _NUMBERS, _TIMES, _TIMES, st.binary(max_size=64),
)  # fmt: skip
HELLO = encode_frame(SidecarFrame(Verb.HELLO, 1, text=b"stranger"))


@corpus.try_saved("sidecar_frames", greeted=True)
@limit_examples(120, cost=4)
@given(
    data=st.lists(FRAMES, max_size=6).map(b"".join) | mutate_bytes([HELLO * 3, HELLO + bytes(FRAME_BYTES)]),
    greeted=st.booleans(),
)
def test_hostile_frames_cost_their_sender_the_connection_and_nobody_else_anything(data: bytes, greeted: bool):
    with corpus.save_failing("sidecar_frames", data):
        uvloop.run(_send_strange(HELLO + data if greeted else data))


async def _send_strange(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with nodes.run_sidecar(directory) as sidecar, await nodes.connect_client(directory) as client:
            handle = await client.put(np.arange(50, dtype=np.int32), invocation="i", deadline=nodes.make_deadline())
            reader, writer = await asyncio.open_unix_connection(str(directory / "s"))
            writer.write(data)
            writer.write_eof()
            async with asyncio.timeout(nodes.PATIENCE):
                await reader.read()
            writer.close()
            await nodes.wait_until(lambda: sidecar.snapshot()["clients"] == 1)
            await _own_is_whole(client, handle)
            client.end_invocation("i")
            await client.stats()


async def _own_is_whole(client: Any, handle: Handle) -> None:
    """Check that the block of the good client is unchanged.

    Only a stranger's message that names this very block may change it.
    """
    array = client.view(handle)
    assert array.sum() == np.arange(50).sum()
    client.release(handle)
