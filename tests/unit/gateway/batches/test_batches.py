"""Batches: files of requests that are answered later, even if their gateway dies."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from omnibus.errors import Overloaded
from omnibus.executor.runner import Job
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_gateway.batches.service import Batches
from omnibus_gateway.openai.batches import parse_lines
from tests.unit.gateway.auth.test_middleware import Gated, start_gated_gateway
from tests.unit.gateway.files.test_client_files import client_of
from tests.unit.gateway.house import (
    TEXT,
    ToyGateway,
    build_chat_body,
    read_error_body,
    start_toy_gateway,
    write_chat_words,
)
from tests.unit.sidecar.node import wait_until

CHAT = "/v1/chat/completions"
PATIENCE_SECONDS = 60.0


@pytest.fixture
async def store(valkey_url: str, tmp_path: Path) -> AsyncIterator[Store]:
    batch_store = Store(StoreSettings(url=valkey_url, prefix=f"batches-{tmp_path.name}"))
    yield batch_store
    await batch_store.close()


@pytest.fixture
async def home(tmp_path: Path, store: Store) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, store) as gateway:
        yield gateway
        await gateway.table.batches.shutdown()


def build_batch_lines(*words: str, model: str = TEXT, url: str = CHAT, **more: Any) -> bytes:
    """Return a file with a chat for each word, which is its id."""
    requests = [
        {"custom_id": word, "method": "POST", "url": url, "body": build_chat_body(model, word, **more)}
        for word in words
    ]
    return b"".join(msgspec.json.encode(each) + b"\n" for each in requests)


async def submit_file(client: openai.AsyncOpenAI, data: bytes, **more: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    wish: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **more}
    return await client.batches.create(**wish)


async def wait_for_batch(client: openai.AsyncOpenAI, id: str) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            batch = await client.batches.retrieve(id)
            if batch.status not in ("validating", "in_progress", "cancelling", "finalizing"):
                return batch
            await asyncio.sleep(0.05)


async def read_results(client: openai.AsyncOpenAI, file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    entries = [json.loads(line) for line in (await client.files.content(file)).text.splitlines()]
    return {each["custom_id"]: each for each in entries}


def read_content(result: dict[str, Any]) -> str:
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


async def test_the_openai_client_has_a_file_of_chats_answered(home: ToyGateway):
    await home.all_of(TEXT)
    home.table.batches.startup()
    client = client_of(home)

    new_batch = await submit_file(client, build_batch_lines("one", "two", "three") + b"\n", metadata={"for": "me"})
    batch = await wait_for_batch(client, new_batch.id)

    assert (new_batch.status, batch.status, batch.metadata) == ("validating", "completed", {"for": "me"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed, batch.error_file_id) == (3, 3, 0, None)
    results_by_id = await read_results(client, batch.output_file_id)
    assert list(results_by_id) == ["one", "two", "three"]
    assert all(read_content(results_by_id[word]).startswith(f"You said {word}") for word in results_by_id)
    assert results_by_id["one"]["response"]["request_id"]
    assert [each.id async for each in client.batches.list()] == [new_batch.id]
    assert [each.purpose async for each in client.files.list(purpose="batch_output")] == ["batch_output"]
    await home.emptied()


async def test_a_line_that_fails_fails_alone(home: ToyGateway):
    await home.all_of(TEXT)
    home.table.batches.startup()
    client = client_of(home)

    data = (
        build_batch_lines("good")
        + build_batch_lines("unknown", model="nobody")
        + build_batch_lines("wrong", temperature=9)
        + build_batch_lines("live", stream=True)
    )
    batch = await wait_for_batch(client, (await submit_file(client, data)).id)

    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 3)
    assert list(await read_results(client, batch.output_file_id)) == ["good"]
    bad = await read_results(client, batch.error_file_id)
    statuses = {name: each["response"] and each["response"]["status_code"] for name, each in bad.items()}
    assert statuses == {"unknown": 404, "wrong": 400, "live": None}
    assert bad["wrong"]["response"]["body"]["error"]["param"] == "temperature"
    assert bad["live"]["error"]["code"] == "invalid_body"


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"\n", ["empty_file"]),
        (b"no json\n", ["invalid_line"]),
        (build_batch_lines("a", "a"), ["duplicate_custom_id"]),
        (build_batch_lines("a", url="/v1/embeddings"), ["mismatched_url"]),
        (build_batch_lines("a") + build_batch_lines("b").replace(b"POST", b"GET"), ["invalid_line"]),
    ],
)
async def test_a_file_that_is_none_of_requests_fails_with_its_lines(home: ToyGateway, data: bytes, codes: list[str]):
    home.serve(TEXT)
    home.table.batches.startup()
    client = client_of(home)

    batch = await wait_for_batch(client, (await submit_file(client, data)).id)

    assert batch.status == "failed"
    assert [each.code for each in batch.errors.data] == codes
    assert batch.output_file_id is None


def test_a_file_with_too_many_lines_says_so():
    _, errors = parse_lines(build_batch_lines("a", "b", "c"), CHAT, 2)

    assert [each.code for each in errors] == ["too_many_lines"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/audio/speech"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": f"file-{'0' * 48}"}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"priority": 1}, "priority"),
    ],
)
async def test_what_is_no_batch_is_refused_by_name(home: ToyGateway, changes: dict[str, Any], param: str):
    file = await client_of(home).files.create(file=("in.jsonl", build_batch_lines("a")), purpose="batch")
    wish = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **changes}

    rejection = await home.http.post("/v1/batches", json=wish)

    assert rejection.status_code in (400, 404)
    assert read_error_body(rejection)["param"] == param


async def test_a_cancelled_batch_keeps_what_was_answered(home: ToyGateway):
    async def answer_first_only(job: Job) -> None:
        if _read_word(await job.value("messages")) != "first":
            await asyncio.Event().wait()
        await write_chat_words(job)

    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=answer_first_only)
    home.table.batches.startup()
    client = client_of(home)
    new_batch = await submit_file(client, build_batch_lines("first", *(f"other{number}" for number in range(9))))

    async def has_begun() -> bool:
        counts = (await client.batches.retrieve(new_batch.id)).request_counts
        return counts is not None and counts.completed == 1

    await wait_until(has_begun)
    cancelling = await client.batches.cancel(new_batch.id)
    batch = await wait_for_batch(client, new_batch.id)

    assert (cancelling.status, batch.status) == ("cancelling", "cancelled")
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 9)
    assert list(await read_results(client, batch.output_file_id)) == ["first"]
    codes = {each["error"]["code"] for each in (await read_results(client, batch.error_file_id)).values()}
    assert codes == {"batch_cancelled"}
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(new_batch.id)
    await home.emptied()


async def test_a_batch_whose_time_is_over_expires(home: ToyGateway, monkeypatch: pytest.MonkeyPatch):
    async def wait_forever(job: Job) -> None:
        await asyncio.Event().wait()

    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=wait_forever)
    monkeypatch.setattr("omnibus_gateway.batches.service._WINDOW_SECONDS", 2.0)
    client = client_of(home)
    home.table.batches.startup()

    batch = await wait_for_batch(client, (await submit_file(client, build_batch_lines("late"))).id)

    assert (batch.status, batch.request_counts.failed) == ("expired", 1)
    assert (await read_results(client, batch.error_file_id))["late"]["error"]["code"] == "batch_expired"
    await home.emptied()


async def test_a_line_that_finds_no_room_is_sent_again(home: ToyGateway):
    refused_jobs: list[Job] = []

    async def busy_once(job: Job) -> None:
        if not refused_jobs:
            refused_jobs.append(job)
            raise Overloaded("no room", retry_after=0.1)
        await write_chat_words(job)

    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=busy_once)
    home.table.batches.startup()
    client = client_of(home)

    batch = await wait_for_batch(client, (await submit_file(client, build_batch_lines("one"))).id)

    assert (batch.status, batch.request_counts.completed, len(refused_jobs)) == ("completed", 1, 1)


async def test_another_gateway_goes_on_where_one_stopped(home: ToyGateway, store: Store):
    words: list[str] = []
    go_on = asyncio.Event()

    async def record_word(job: Job) -> None:
        word = _read_word(await job.value("messages"))
        words.append(word)
        if word != "first":
            await go_on.wait()
        await write_chat_words(job)

    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=record_word)
    client = client_of(home)
    home.table.batches.startup()
    new_batch = await submit_file(client, build_batch_lines("first", "second", "third"))

    async def has_results() -> bool:
        return bool(await home.chat.files.storage.list(f"nobody/batches/{new_batch.id}/results"))

    await wait_until(has_results)
    await home.table.batches.shutdown()  # releases it
    go_on.set()
    other = Batches(home.settings, store, home.chat.files, home.table._batch_routes())
    other.startup()
    try:
        batch = await wait_for_batch(client, new_batch.id)
    finally:
        await other.shutdown()

    assert (batch.status, batch.request_counts.completed) == ("completed", 3)
    assert list(await read_results(client, batch.output_file_id)) == ["first", "second", "third"]
    assert words.count("first") == 1


async def test_tenants_see_their_own_batches_alone_and_wait_behind_their_other_requests(tmp_path: Path, store: Store):
    async with start_gated_gateway(tmp_path) as gate:
        batches = gate.home.table.batches
        batches._store = batches._worker._store = store
        await gate.home.all_of(TEXT)
        batches.startup()
        own_client, other = client_of(gate.home, gate.http, "a"), client_of(gate.home, gate.http, "b")

        batch = await wait_for_batch(own_client, (await submit_file(own_client, build_batch_lines("one", "two"))).id)
        await batches.shutdown()

        assert batch.request_counts.completed == 2
        assert [each.id async for each in other.batches.list()] == []
        with pytest.raises(openai.NotFoundError):
            await other.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            await other.files.content(batch.output_file_id)
        assert _lines_of(gate) == {"a batch"}
        await gate.ask("a")
        assert _lines_of(gate) == {"a", "a batch"}


def _lines_of(gate: Gated) -> set[str]:
    """Return the queues in which requests have waited for their turn."""
    return set(gate.fair()._lines)


def _read_word(messages: Any) -> str:
    [message] = msgspec.to_builtins(messages)
    return str(message["content"])
