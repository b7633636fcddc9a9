"""Failures of a request in a worker: typed errors, in time, alone."""

import asyncio
import logging
import re
from dataclasses import replace

import pytest

from omnibus.errors import (
    AppFailed,
    DeadlineExceeded,
    NotFound,
    OmnibusError,
    Overloaded,
    PlaceholderError,
    StageFailed,
    TooLarge,
)
from omnibus.tensors.handle import Item
from tests.unit.gateway.apps.workers import CALM, ECHO, QUICK, SPELLS, Abacus, run_worker, wait_until_true, write_app

# Failures of the app


async def test_an_error_of_the_app_is_told_without_its_text_and_logged_with_it(tmp_path, caplog):
    async with run_worker(
        write_app(tmp_path, "async def serve(request):\n    raise ValueError('s3cret')\n", "poet_app")
    ) as host:
        run = Abacus()
        with caplog.at_level(logging.INFO), pytest.raises(AppFailed) as error_info:
            await host.invoke(run, b"1").read_answer()
        await wait_until_true(lambda: "ValueError: s3cret" in caplog.text)

        assert await asyncio.gather(
            *(host.invoke(Abacus(), b"1").read_answer() for _ in range(2)), return_exceptions=True
        )

    assert str(error_info.value) == "the app poet_app failed: ValueError; the gateway's log has more under gw-1"
    assert "gw-1: the app's serve failed" in caplog.text
    assert "Traceback" in caplog.text
    assert run.status == "failed"
    assert run.failure is error_info.value


async def test_where_the_operator_allows_it_clients_are_told_what_was_raised_and_where(tmp_path):
    text = "async def serve(request):\n    numbers = {}\n    return numbers[request]\n"
    async with run_worker(write_app(tmp_path, text, "poet_app"), rules=replace(CALM, show_errors=True)) as host:
        with pytest.raises(AppFailed) as error_info:
            await host.invoke(Abacus(), b'"one"').read_answer()

    assert re.search(
        r"poet_app failed: KeyError: 'one' \(poet_app.py:\d+: return numbers\[request\]\);", str(error_info.value)
    )


@pytest.mark.parametrize(
    ("exception_text", "kind", "fault"),
    [
        ("NotFound('no such poem', param='poem')", NotFound, "no such poem"),
        ("SystemExit(3)", AppFailed, "sample_app failed: SystemExit"),
        ("TimeoutError()", AppFailed, "sample_app failed: TimeoutError"),
        ("MemoryError()", AppFailed, "sample_app failed: MemoryError"),
        ("asyncio.CancelledError()", AppFailed, "sample_app ended without an answer"),
        ("RecursionError()", AppFailed, "sample_app failed: RecursionError"),
    ],
)
async def test_whatever_serve_raises_ends_one_request(tmp_path, exception_text, kind, fault):
    text = f"async def serve(request):\n    if request:\n        raise {exception_text}\n    return 'fine'\n"
    async with run_worker(write_app(tmp_path, text)) as host:
        pid = host.pid

        with pytest.raises(kind, match=fault):
            await host.invoke(Abacus(), b"1").read_answer()

        assert await host.invoke(Abacus(), b"0").read_answer() == b'"fine"'
        assert host.pid == pid


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("async def serve(request):\n    return object()", "must return JSON: .*object"),
        ("async def serve(request):\n    x = []\n    x.append(x)\n    return x", "must return JSON|RecursionError"),
        (
            "async def serve(request) -> int:\n    return 'many'",
            "does not match its annotation: Input should be a valid integer",
        ),
        (
            "async def serve(request) -> dict[str, int]:\n    return {'a': 'b'}",
            "does not match its annotation: a: Input should be",
        ),
        ("async def serve(request) -> AsyncIterator[int]:\n    yield 'x'", "does not match its annotation"),
        (
            "async def serve(request) -> AsyncIterator[int]:\n    return 3",
            "annotated as a stream, but returned a value of type int",
        ),
        ("async def serve(request):\n    return b'\\xff'", "must return JSON"),
        (f"async def serve(request):\n    return 'x' * {65 << 20}", "returned too much at once"),
    ],
    ids=["object", "circle", "int", "dict", "part", "no-stream", "bytes", "huge"],
)
async def test_nonsense_is_a_fault_of_the_app(tmp_path, text, fault):
    async with run_worker(write_app(tmp_path, text)) as host:
        pid, call = host.pid, host.invoke(Abacus(), b"1")

        with pytest.raises(AppFailed, match=fault):
            if host.description.streams:
                _ = [part async for part in call.read_parts()]
            else:
                await call.read_answer()
        assert host.pid == pid


async def test_numbers_that_json_has_not_become_null(tmp_path):
    async with run_worker(
        write_app(tmp_path, "async def serve(request):\n    return [float('nan'), np.float32(1.5), np.zeros((1, 2))]\n")
    ) as host:
        assert await host.invoke(Abacus(), b"1").read_answer() == b"[null,1.5,[[0.0,0.0]]]"


async def test_a_task_that_is_invoked_outside_of_a_graph_says_what_to_do(tmp_path):
    async with run_worker(
        write_app(tmp_path, "async def serve(request: Words):\n    return SPELL.invoke(request)\n")
    ) as host:
        with pytest.raises(PlaceholderError, match="`await task"):
            await host.invoke(Abacus(), b'{"text": "a"}').read_answer()


# Failures of what it runs


@pytest.mark.parametrize("rejection", [Overloaded("later", retry_after=3.0), NotFound("no such model")])
async def test_a_segment_that_does_not_run_fails_the_request_as_it_is(tmp_path, rejection):
    async with run_worker(write_app(tmp_path, SPELLS)) as host:
        run = Abacus()
        run.refuses = rejection

        with pytest.raises(Exception) as error_info:
            await host.invoke(run, b'{"text": "a"}').read_answer()

    assert error_info.value.to_problem() == rejection.to_problem()
    assert run.status == "failed"


async def test_a_defect_of_the_gateway_is_an_error_without_its_text(tmp_path, caplog):
    async with run_worker(write_app(tmp_path, SPELLS)) as host:
        run = Abacus()
        run.refuses = RuntimeError("s3cret")

        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(OmnibusError, match="internal error: the gateway's log has more"),
        ):
            await host.invoke(run, b'{"text": "a"}').read_answer()

    assert "RuntimeError: s3cret" in caplog.text


async def test_an_output_that_fails_raises_in_the_app_which_may_go_on(tmp_path):
    text = """
    async def serve(request: Words):
        out = await SPELL(request)
        seen = []
        try:
            async for letter in out.letters:
                seen.append(letter)
        except OmnibusError as error:
            return [seen, error.code, error.stage]
    """

    def fail_stream(name, stream):
        stream.add_item(Item({"value": "x"}))
        stream.fail(StageFailed("broken", stage="spell"))

    async with run_worker(write_app(tmp_path, text)) as host:
        run = Abacus()
        run.fills = fail_stream

        assert await host.invoke(run, b'{"text": "a"}').read_answer() == b'[["x"],"stage_failed","spell"]'
    assert run.status == "done"


async def test_a_request_over_the_size_of_a_message_is_refused(tmp_path):
    async with run_worker(write_app(tmp_path, ECHO)) as host:
        run = Abacus()

        with pytest.raises(TooLarge, match="is too large for an app"):
            host.invoke(run, b" " * (64 << 20))

        assert run.status == "failed"
        assert await host.invoke(Abacus(), b"1").read_answer() == b"1"


# Deadlines and disconnects


@pytest.mark.parametrize(
    "waits",
    ["asyncio.sleep(1000)", "asyncio.get_running_loop().create_future()", "(await SPELL(Words(text='a'))).letters"],
)
async def test_an_app_that_never_answers_is_ended_at_the_deadline(tmp_path, waits):
    text = f"async def serve(request):\n    if request:\n        await {waits}\n    return 'fine'\n"
    async with run_worker(write_app(tmp_path, text)) as host:
        pid, run = host.pid, Abacus(0.5)
        run.fills = lambda name, stream: None

        with pytest.raises(DeadlineExceeded, match="the app sample_app did not answer within its deadline"):
            await host.invoke(run, b"1").read_answer()

        assert run.status == "expired"
        assert isinstance(run.failure, DeadlineExceeded)
        assert await host.invoke(Abacus(), b"0").read_answer() == b'"fine"'
        assert host.pid == pid


async def test_a_deadline_in_the_middle_of_parts_is_an_error_after_them(tmp_path):
    async with run_worker(
        write_app(tmp_path, "async def serve(request):\n    yield 1\n    await asyncio.sleep(1000)\n")
    ) as host:
        run, parts = Abacus(2.0), []

        with pytest.raises(DeadlineExceeded):
            async for part in host.invoke(run, b"1").read_parts():
                parts.append(part)

    assert parts == [b"1"]
    assert run.status == "expired"


async def test_a_blocking_app_blocks_nobody_but_itself_and_is_replaced(tmp_path):
    text = "async def serve(request):\n    if request:\n        time.sleep(1000)\n    return 'fine'\n"
    async with (
        run_worker(write_app(tmp_path, text, "blocking_app"), rules=QUICK) as blocking,
        run_worker(write_app(tmp_path, ECHO, "echo_app")) as other,
    ):
        pid, run, beside = blocking.pid, Abacus(1.0), Abacus()
        blocked_call = asyncio.ensure_future(blocking.invoke(run, b"1").read_answer())
        waiting = asyncio.ensure_future(blocking.invoke(beside, b"0").read_answer())

        for number in range(5):
            assert await other.invoke(Abacus(), b"%d" % number).read_answer() == b"%d" % number
        with pytest.raises(DeadlineExceeded, match="blocking_app"):
            await blocked_call
        with pytest.raises(AppFailed, match="it did not end a cancelled request within"):
            await waiting

        assert (run.status, beside.status) == ("expired", "failed")
        await wait_until_true(lambda: blocking.is_ready)
        assert blocking.pid != pid
        assert await blocking.invoke(Abacus(), b"0").read_answer() == b'"fine"'


STUBBORN = """
async def serve(request):
    yield 1
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass
"""


async def test_an_app_that_ignores_its_cancellation_is_replaced(tmp_path):
    async with run_worker(write_app(tmp_path, STUBBORN), rules=QUICK) as host:
        pid, run = host.pid, Abacus()
        call = host.invoke(run, b"1")
        await anext(call.read_parts())

        call.cancel()

        assert run.status == "cancelled"
        await wait_until_true(lambda: host.is_ready and host.pid != pid)


async def test_a_request_that_is_cancelled_before_it_begins_ends_too(tmp_path):
    async with run_worker(write_app(tmp_path, ECHO)) as host:
        pid = host.pid

        host.invoke(Abacus(), b"1").cancel()

        await wait_until_true(lambda: not host._process.requests)
        assert host.pid == pid
        assert await host.invoke(Abacus(), b"2").read_answer() == b"2"


async def test_a_client_that_leaves_cancels_the_app_once(tmp_path):
    text = """
    STATE = []
    async def serve(request):
        if request == "state":
            return STATE
        try:
            STATE.append("runs")
            await asyncio.sleep(1000)
        finally:
            STATE.append("ended")
    """
    async with run_worker(write_app(tmp_path, text)) as host:
        pid, run = host.pid, Abacus()
        call = host.invoke(run, b"1")
        while await host.invoke(Abacus(), b'"state"').read_answer() != b'["runs"]':
            pass

        call.cancel()
        call.cancel()
        call.close()

        assert run.status == "cancelled"
        while await host.invoke(Abacus(), b'"state"').read_answer() != b'["runs","ended"]':
            pass
        assert host.pid == pid


async def test_a_handler_that_is_cancelled_cancels_the_app(tmp_path):
    async with run_worker(write_app(tmp_path, "async def serve(request):\n    await asyncio.sleep(1000)\n")) as host:
        run = Abacus()
        handler = asyncio.ensure_future(host.invoke(run, b"1").read_answer())
        await asyncio.sleep(0)

        handler.cancel()
        await asyncio.gather(handler, return_exceptions=True)

        assert run.status == "cancelled"
