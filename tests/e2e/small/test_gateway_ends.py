"""A gateway ends in the middle of long answers: by a signal each gets a typed error, and streams go on elsewhere."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.small.streams import MODEL, PATH, SPOKEN, Answer, model, question, read
from tests.e2e.system import System, running

pytestmark = pytest.mark.e2e

STREAMS = 12


@pytest.fixture(scope="module")
def talkers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("talkers")
    with running(
        directory,
        {MODEL: model(directory)},
        "--gateways",
        "2",
        OMNIBUS_EXECUTOR_ENGINE="services.engines:sim",
        OMNIBUS_EXECUTOR_CREDITS="1024",
        OMNIBUS_SERVICE_DRAIN="0.2",
    ) as system:
        yield system


def streamed_question(number: int) -> dict[str, Any]:
    return question(number, stream=True, **(SPOKEN if number % 3 == 0 else {}))


async def all_begun(answers: list[Answer], events: int) -> None:
    async with asyncio.timeout(60):
        while not all(answer.events >= events for answer in answers):
            await asyncio.sleep(0.01)


async def test_every_answer_ends_typed_when_its_gateway_is_told_to_end(talkers: System):
    await talkers.becomes_ready()
    gateway = talkers.gateway(0)
    async with talkers.http(0) as http:
        answers = [Answer() for _ in range(STREAMS)]
        streamed = [asyncio.create_task(read(http, each, streamed_question(n))) for n, each in enumerate(answers)]
        whole = [asyncio.create_task(http.post(PATH, json=question(n))) for n in range(STREAMS)]
        await all_begun(answers, 3)

        gateway.terminate()

        await asyncio.wait_for(asyncio.gather(*streamed), 60)
        for answer in answers:
            assert answer.error is not None, answer
            assert answer.error["code"] == "gateway_stopping"
        for response in await asyncio.wait_for(asyncio.gather(*whole), 60):
            assert response.headers["content-type"] == "application/json"
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["code"] == "gateway_stopping"


async def test_a_request_that_was_on_its_way_is_refused_and_its_connection_is_not_reset(talkers: System):
    await talkers.becomes_ready()
    gateway = talkers.gateway(0)
    async with talkers.http(0) as http:
        host, port = str(http.base_url.host), http.base_url.port
    connections = [await asyncio.open_connection(host, port) for _ in range(8)]
    body = b"{}"
    request = b"POST %b HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%b" % (PATH.encode(), len(body), body)

    gateway.terminate()
    await asyncio.sleep(0.3)
    for _, writer in connections:
        writer.write(request)

    async with asyncio.timeout(10):
        for reader, writer in connections:
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 "), answer
            assert b"gateway_stopping" in answer
            writer.close()


async def test_streams_of_a_gateway_that_is_killed_go_on_at_another_one(talkers: System):
    await talkers.becomes_ready()
    async with talkers.http(1) as other:
        undisturbed = await asyncio.gather(*(read(other, Answer(), streamed_question(n)) for n in range(STREAMS)))
        assert all(answer.whole for answer in undisturbed)
        answers = [Answer() for _ in range(STREAMS)]
        async with talkers.http(0) as http:
            reading = [asyncio.create_task(read(http, each, streamed_question(n))) for n, each in enumerate(answers)]
            await all_begun(answers, 5)

            talkers.gateway(0).kill()

            await asyncio.wait_for(asyncio.gather(*reading), 60)
        assert not any(answer.whole for answer in answers)
        await asyncio.wait_for(asyncio.gather(*(read(other, each) for each in answers)), 60)

    for answer, known in zip(answers, undisturbed, strict=True):
        assert answer.whole, answer
        assert answer.content == known.content
        assert answer.finished == known.finished


async def test_streams_that_are_told_to_stop_go_on_too(talkers: System):
    await talkers.becomes_ready()
    answer = Answer()
    async with talkers.http(0) as http, talkers.http(1) as other:
        undisturbed = await read(other, Answer(), streamed_question(3))
        reading = asyncio.create_task(read(http, answer, streamed_question(3)))
        await all_begun([answer], 5)

        talkers.gateway(0).terminate()

        await asyncio.wait_for(reading, 60)
        assert not answer.whole
        await asyncio.wait_for(read(other, answer), 60)

    assert answer.content == undisturbed.content
