"""A gateway ends during long answers: streams continue at another one.

After a signal, each gets a typed error first.
"""

import asyncio
import contextlib
import json
import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.small.conversations import Conversation
from tests.e2e.small.streams import MODEL, PATH, SPOKEN, ResumableAnswer, make_model, question_body, read_answer
from tests.e2e.system import System, start_system

pytestmark = pytest.mark.e2e

STREAMS = 12
#: Number of times that a gateway is killed under stored responses; each time ``STREAMS`` of them continue.
KILLS = int(os.environ.get("OMNIBUS_TEST_KILLS", "2"))
#: Of an answer that is never over: tokens of 20 ms.
ENDLESS = {"max_tokens": 100_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def talker_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("talkers")
    with start_system(
        directory,
        {MODEL: make_model(directory)},
        "--gateways",
        "2",
        OMNIBUS_EXECUTOR_ENGINE="omnibus_engines:sim",
        OMNIBUS_EXECUTOR_CREDITS="1024",
        OMNIBUS_SERVICE_DRAIN="0.2",
    ) as system:
        yield system


def streamed_question(number: int, **more: Any) -> dict[str, Any]:
    return question_body(number, stream=True, **(SPOKEN if number % 3 == 0 else {}), **more)


async def all_begun(answers: list[ResumableAnswer], events: int) -> None:
    async with asyncio.timeout(60):
        while not all(answer.events >= events for answer in answers):
            await asyncio.sleep(0.01)


async def test_every_answer_ends_typed_when_its_gateway_is_told_to_end(talker_system: System):
    await talker_system.becomes_ready()
    gateway = talker_system.gateway(0)
    async with talker_system.http(0) as http:
        answers = [ResumableAnswer() for _ in range(STREAMS)]
        questions = [streamed_question(number, **ENDLESS) for number in range(STREAMS)]
        tasks = [asyncio.create_task(read_answer(http, *each)) for each in zip(answers, questions, strict=True)]
        whole = [asyncio.create_task(http.post(PATH, json=question_body(n, **ENDLESS))) for n in range(STREAMS)]
        await all_begun(answers, 3)

        gateway.terminate()

        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        for answer in answers:
            assert answer.error is not None, answer
            assert answer.error["code"] == "gateway_stopping"
        for response in await asyncio.wait_for(asyncio.gather(*whole), 60):
            assert response.headers["content-type"] == "application/json"
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["code"] == "gateway_stopping"


async def test_a_request_that_was_on_its_way_is_refused_and_its_connection_is_not_reset(talker_system: System):
    await talker_system.becomes_ready()
    gateway = talker_system.gateway(0)
    async with talker_system.http(0) as http:
        host, port = str(http.base_url.host), http.base_url.port
    connections = [await asyncio.open_connection(host, port) for _ in range(8)]
    body = b"{}"
    request = b"POST %b HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%b" % (PATH.encode(), len(body), body)

    gateway.terminate()
    await is_stopping(talker_system)
    for _, writer in connections:
        writer.write(request)

    async with asyncio.timeout(10):
        for reader, writer in connections:
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 "), answer
            assert b"gateway_stopping" in answer
            writer.close()


async def is_stopping(system: System) -> None:
    """Wait until the first gateway rejects requests or refuses connections."""
    async with asyncio.timeout(60), system.http(0) as http:
        with contextlib.suppress(httpx.TransportError):
            while not (await http.get("/readyz")).json().get("stopping"):
                await asyncio.sleep(0.01)


async def cut_answers(
    system: System, numbers: range, events: int, end: Callable[[psutil.Process], None]
) -> list[ResumableAnswer]:
    """Answers of the first gateway, cut by ``end`` after ``events`` events.

    On a busy machine they may complete earlier. Then this is repeated until some are cut.
    """
    while True:
        await system.becomes_ready()
        answers = [ResumableAnswer() for _ in numbers]
        async with system.http(0) as http:
            questions = [streamed_question(number) for number in numbers]
            reading = [asyncio.create_task(read_answer(http, *each)) for each in zip(answers, questions, strict=True)]
            await all_begun(answers, events)
            end(system.gateway(0))
            await asyncio.wait_for(asyncio.gather(*reading), 60)
        if not all(answer.whole for answer in answers):
            return answers


async def test_streams_of_a_gateway_that_is_killed_go_on_at_another_one(talker_system: System):
    await talker_system.becomes_ready()
    async with talker_system.http(1) as other:
        references = await asyncio.gather(
            *(read_answer(other, ResumableAnswer(), streamed_question(n)) for n in range(STREAMS))
        )
        assert all(answer.whole for answer in references)
        answers = await cut_answers(talker_system, range(STREAMS), 5, psutil.Process.kill)
        cut = [answer for answer in answers if not answer.whole]
        await asyncio.wait_for(asyncio.gather(*(read_answer(other, each) for each in cut)), 60)

    for answer, reference in zip(answers, references, strict=True):
        assert answer.whole, answer
        assert answer.content == reference.content
        assert answer.finished == reference.finished


async def test_streams_that_are_told_to_stop_go_on_too(talker_system: System):
    await talker_system.becomes_ready()
    async with talker_system.http(1) as other:
        reference = await read_answer(other, ResumableAnswer(), streamed_question(3))
        [answer] = await cut_answers(talker_system, range(3, 4), 1, psutil.Process.terminate)
        await asyncio.wait_for(read_answer(other, answer), 60)

    assert answer.content == reference.content


# Stored responses


class StoredStream:
    """A client of a stored response, with all events from any gateway."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.body = b""

    @property
    def frames(self) -> list[bytes]:
        """Complete frames that arrived."""
        return [frame + b"\n\n" for frame in self.body.split(b"\n\n")[:-1]]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(frame.split(b"data: ")[1]) for frame in self.frames if b"[DONE]" not in frame]

    @property
    def is_whole(self) -> bool:
        return self.frames[-1:] == [b"data: [DONE]\n\n"]

    @property
    def text(self) -> str:
        return "".join(event["delta"] for event in self.events if event["type"] == "response.output_text.delta")

    async def begin(self, http: httpx.AsyncClient) -> None:
        body = {"model": MODEL, "input": f"question {self.number}", "seed": self.number, "stream": True}
        await self._read(http, http.build_request("POST", "/v1/responses", json=body))

    async def go_on(self, http: httpx.AsyncClient) -> None:
        self.body = b"".join(self.frames)  # half an event is none
        last = self.events[-1]["sequence_number"]
        query = {"stream": "true", "starting_after": str(last)}
        await self._read(http, http.build_request("GET", f"/v1/responses/{self.id}", params=query))

    @property
    def id(self) -> str:
        return str(self.events[0]["response"]["id"])

    async def _read(self, http: httpx.AsyncClient, request: httpx.Request) -> None:
        try:
            response = await http.send(request, stream=True)
            try:
                assert response.status_code == 200, await response.aread()
                async for data in response.aiter_raw():
                    self.body += data
            finally:
                await response.aclose()
        except httpx.TransportError:
            pass  # its gateway is gone


@pytest.mark.parametrize(
    "count", [KILLS * STREAMS, pytest.param(1000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]
)
async def test_stored_responses_go_on_byte_by_byte_when_their_gateway_is_killed(talker_system: System, count: int):
    """``count`` interrupted streams continue; on a busy machine some end before the kill."""
    await talker_system.becomes_ready()
    async with talker_system.http(1) as other:
        references = [StoredStream(number) for number in range(STREAMS)]
        await asyncio.gather(*(each.begin(other) for each in references))
        kills = continued_count = 0
        while continued_count < count:
            await talker_system.becomes_ready()
            streams = [StoredStream(number) for number in range(STREAMS)]
            async with talker_system.http(0) as http:
                reading = [asyncio.create_task(each.begin(http)) for each in streams]
                async with asyncio.timeout(60):
                    while not all(len(each.frames) > 8 for each in streams) and not any(
                        each.is_whole for each in streams
                    ):
                        await asyncio.sleep(0.01)

                talker_system.gateway(0).kill()

                await asyncio.wait_for(asyncio.gather(*reading), 60)
            cut = [each for each in streams if each.frames and not each.is_whole]
            kills, continued_count = kills + 1, continued_count + len(cut)
            await asyncio.wait_for(asyncio.gather(*(each.go_on(other) for each in cut)), 60)

            for stream in cut:
                reference = references[stream.number]
                assert stream.is_whole, stream.events[-1]
                assert [event["sequence_number"] for event in stream.events] == list(range(len(stream.events)))
                assert stream.text == reference.text
                # Afterwards any gateway returns the bytes that its client has.
                again = await other.get(f"/v1/responses/{stream.id}", params={"stream": "true"})
                assert again.content == stream.body
                final = (await other.get(f"/v1/responses/{stream.id}")).json()
                assert final == stream.events[-1]["response"]
    print(f"{kills} kills: {continued_count} streams went on byte by byte")


async def test_a_response_in_the_background_outlives_its_gateway(talker_system: System):
    await talker_system.becomes_ready()
    async with talker_system.http(0) as http, talker_system.http(1) as other:
        body = {"model": MODEL, "input": "question 3", "seed": 3, "background": True}
        responses = [(await http.post("/v1/responses", json=body)).json() for _ in range(3)]
        await asyncio.sleep(0.3)

        talker_system.gateway(0).kill()

        for each in responses:
            async with asyncio.timeout(60):
                while (now := (await other.get(f"/v1/responses/{each['id']}")).json())["status"] != "completed":
                    assert now["status"] in ("queued", "in_progress"), now
                    await asyncio.sleep(0.1)
            assert now["output"][0]["content"][0]["text"]
            cut = StoredStream(3)
            cut.body = (await other.get(f"/v1/responses/{each['id']}", params={"stream": "true"})).content
            assert cut.is_whole
            assert [event["sequence_number"] for event in cut.events] == list(range(len(cut.events)))


@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.nightly)])
async def test_sessions_by_voice_go_on_with_no_sample_lost_or_repeated(talker_system: System, kills: int):
    await talker_system.becomes_ready()
    many = STREAMS if kills > KILLS else STREAMS // 3
    references = [Conversation(talker_system.urls, number) for number in range(many)]
    await asyncio.gather(*(each.hold(1) for each in references))
    gaps: list[list[float]] = []
    while len(gaps) < kills:  # on a busy machine all sessions may be over before: then that kill does not count
        await talker_system.becomes_ready()
        sessions = [Conversation(talker_system.urls, number) for number in range(many)]
        tasks = [asyncio.create_task(each.hold(0)) for each in sessions]
        async with asyncio.timeout(60):
            while not all(each.sound for each in sessions):
                await asyncio.sleep(0.01)

        talker_system.gateway(0).kill()

        await asyncio.gather(*tasks)
        for session, reference in zip(sessions, references, strict=True):
            assert (session.text, session.sound, session.wrong) == (reference.text, reference.sound, [])
        if lengths := [gap.seconds for each in sessions for gap in each.gaps]:
            assert any(session.resumed for session in sessions)
            gaps.append(lengths)
    each = [seconds for gap_lengths in gaps for seconds in gap_lengths]
    print(f"{kills} kills: {len(each)} sessions resumed, {statistics.median(each):.3f} s in between")
