import asyncio
import os
import socket
import stat
import struct

import msgspec
import numpy as np
import pytest
import uvloop

from omnibus.errors import Fatal, ProtocolError
from omnibus.tensors import protocol
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle
from omnibus.tensors.protocol import FRAME_BYTES, SidecarFrame, Verb, encode_frame
from omnibus_sidecar import server as connection
from omnibus_sidecar.server import Sidecar
from tests.unit.sidecar.node import (
    NODE,
    connect_client,
    make_deadline,
    make_settings,
    read_line,
    run_sidecar,
    send_line,
    start_process,
    wait_until,
)

HELLO = encode_frame(SidecarFrame(Verb.HELLO, 1, text=b"raw"))


async def test_two_processes_share_bytes_without_copying(tmp_path):
    async with (
        run_sidecar(tmp_path) as sidecar,
        await connect_client(tmp_path) as client,
        start_process("reader", tmp_path) as reader,
    ):
        block = await client.allocate((50,), "int32", invocation="i", deadline=make_deadline())
        block.array[:] = 1
        send_line(reader, msgspec.json.encode(block.seal()))
        assert await read_line(reader) == b"50"

        block.array[:] = 3  # after the consumer opened its view
        send_line(reader, b"again")
        assert await read_line(reader) == b"150"

        send_line(reader, b"done")
        assert await read_line(reader) == b"released"
        await client.stats()
        assert sidecar.snapshot()["blocks"] == 0


async def test_a_killed_producer_loses_what_it_had_not_sealed(tmp_path):
    async with (
        run_sidecar(tmp_path) as sidecar,
        await connect_client(tmp_path) as client,
        start_process("producer", tmp_path) as producer,
    ):
        sealed_handle, _ = msgspec.json.decode(await read_line(producer), type=list[Handle])
        assert sidecar.snapshot()["blocks"] == 2

        producer.kill()

        await wait_until(lambda: sidecar.snapshot()["clients"] == 1)
        assert [row["id"] for row in await client.ledger()] == [sealed_handle.id]
        assert sidecar.snapshot()["freed_total"] == {"orphaned": 1}
        assert client.view(sealed_handle).sum() == 700
        client.release(sealed_handle)
        assert (await client.stats())["blocks"] == 0


async def test_a_killed_reader_has_released(tmp_path):
    async with (
        run_sidecar(tmp_path) as sidecar,
        await connect_client(tmp_path) as client,
        start_process("reader", tmp_path) as reader,
    ):
        handle = await client.put(np.ones(50, np.int32), invocation="i", deadline=make_deadline())
        send_line(reader, msgspec.json.encode(handle))
        assert await read_line(reader) == b"50"
        assert (await client.ledger())[0]["held"] == 1

        reader.kill()

        await wait_until(lambda: sidecar.snapshot()["blocks"] == 0)


async def _send_raw(directory, raw: bytes) -> bytes:
    """Return the sidecar's whole answer to ``raw`` until it closes the connection."""
    reader, writer = await asyncio.open_unix_connection(str(directory / "s"))
    writer.write(raw)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


@pytest.mark.parametrize(
    "raw",
    [
        os.urandom(FRAME_BYTES).replace(b"\x4f\x4d", b"\x00\x00"),
        b"GET / HTTP/1.1\r\n" * 16,
        encode_frame(SidecarFrame(Verb.STATS, 1)),
        encode_frame(SidecarFrame(Verb.HELLO, 1)),
        HELLO + HELLO,
        HELLO + encode_frame(SidecarFrame(Verb.GRANTED, 1)),
        HELLO + b"\x00" * FRAME_BYTES,
        HELLO + struct.pack("<HBBI", 0x4F4D, Verb.ALLOCATE, 255, 1) + b"\x01" + bytes(FRAME_BYTES - 9),
    ],
    ids=["noise", "http", "before-hello", "nameless", "hello-twice", "an-answer", "zeros", "long-text"],
)
async def test_a_malformed_frame_costs_its_sender_the_connection_and_nobody_else(tmp_path, caplog, raw):
    async with run_sidecar(tmp_path) as sidecar, await connect_client(tmp_path) as client:
        handle = await client.put(np.arange(9), invocation="i", deadline=make_deadline())

        await _send_raw(tmp_path, raw)

        assert "is disconnected" in caplog.text
        assert client.view(handle).sum() == 36
        await wait_until(lambda: sidecar.snapshot()["clients"] == 1)
        assert sidecar.snapshot()["dropped_clients_total"] == 1


async def test_frames_before_a_malformed_one_are_served_and_then_dropped_with_the_client(tmp_path):
    allocate = encode_frame(SidecarFrame(Verb.ALLOCATE, 2, nbytes=10, deadline=make_deadline(), text=b"i"))
    async with run_sidecar(tmp_path) as sidecar:
        await _send_raw(tmp_path, HELLO + allocate + b"\x00" * FRAME_BYTES)

        await wait_until(lambda: sidecar.snapshot()["clients"] == 0)
        assert sidecar.snapshot()["freed_total"] == {"orphaned": 1}


async def test_half_a_frame_and_a_hang_up_leave_nothing(tmp_path):
    async with run_sidecar(tmp_path) as sidecar:
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(HELLO + HELLO[:50])
        await wait_until(lambda: sidecar.snapshot()["clients"] == 1)
        writer.close()

        await wait_until(lambda: sidecar.snapshot()["clients"] == 0)
        assert sidecar.snapshot()["dropped_clients_total"] == 0


async def test_a_client_of_another_version_is_told_so(tmp_path, monkeypatch):
    async with run_sidecar(tmp_path):
        answer = await _send_raw(tmp_path, HELLO[:8] + struct.pack("<H", 9) + HELLO[10:])

        assert struct.unpack_from("<HBBIH", answer) == (protocol.MAGIC, Verb.REFUSED, 0, 0, protocol.VERSION)


async def test_a_sidecar_of_another_version_is_refused_with_a_clear_error(tmp_path):
    async def old_sidecar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(FRAME_BYTES)
        refusal = encode_frame(SidecarFrame(Verb.REFUSED))
        writer.write(refusal[:8] + struct.pack("<H", 0) + refusal[10:])
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(old_sidecar, str(tmp_path / "s"))
    with pytest.raises(ProtocolError, match="install the same release"):
        await connect_client(tmp_path)
    server.close()


async def test_a_client_that_reads_no_answers_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "MAX_UNREAD_BYTES", 64 * 1024)
    async with run_sidecar(tmp_path) as sidecar, await connect_client(tmp_path) as client:
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, str(tmp_path / "s"))
        await loop.sock_sendall(raw, HELLO)

        async def ask_for_ever() -> None:
            while True:
                await loop.sock_sendall(raw, encode_frame(SidecarFrame(Verb.STATS, 1)) * 100)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            await asyncio.wait_for(ask_for_ever(), 20)

        raw.close()
        assert sidecar.snapshot()["dropped_clients_total"] == 1
        assert (await client.stats())["blocks"] == 0


async def test_the_socket_belongs_to_its_user_alone(tmp_path):
    async with run_sidecar(tmp_path):
        mode = (tmp_path / "s").stat().st_mode

    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_stopping_removes_socket_and_arena_and_may_be_repeated(tmp_path):
    sidecar = Sidecar(make_settings(tmp_path))
    await sidecar.start()
    client = await connect_client(tmp_path)
    await client.allocate(100, invocation="i", deadline=make_deadline())
    serving = asyncio.create_task(sidecar.serve())

    await sidecar.stop()
    await sidecar.stop()

    await asyncio.wait_for(serving, 20)
    assert list(tmp_path.iterdir()) == []
    await wait_until(lambda: not client.connected)
    await client.close()


async def test_a_second_sidecar_under_the_same_names_is_refused_and_harms_nobody(tmp_path):
    async with run_sidecar(tmp_path), await connect_client(tmp_path) as client:
        handle = await client.put(np.arange(9), invocation="i", deadline=make_deadline())
        with pytest.raises(Fatal, match="living sidecar owns the arena"):
            await Sidecar(make_settings(tmp_path)).start()
        with pytest.raises(Fatal, match="another sidecar listens"):
            await Sidecar(make_settings(tmp_path, arena="second")).start()

        assert client.view(handle).sum() == 36
        assert not (tmp_path / "second").exists()
        assert (await client.stats())["blocks"] == 1


async def test_a_file_in_place_of_the_socket_is_spared(tmp_path):
    (tmp_path / "s").write_text("precious")

    with pytest.raises(Fatal, match="not a socket"):
        await Sidecar(make_settings(tmp_path)).start()

    assert (tmp_path / "s").read_text() == "precious"
    assert not (tmp_path / "arena").exists()


async def test_a_socket_path_that_is_too_long_is_explained(tmp_path):
    with pytest.raises(Fatal, match="107 bytes"):
        await Sidecar(make_settings(tmp_path, socket=str(tmp_path / ("x" * 120)))).start()


async def test_the_snapshot_counts_everything_from_the_start(tmp_path):
    sidecar = Sidecar(make_settings(tmp_path))
    assert sidecar.snapshot() == {}
    await sidecar.start()
    async with await connect_client(tmp_path) as client:
        await client.allocate(1000, invocation="i", deadline=make_deadline())

        snapshot = sidecar.snapshot()

    assert snapshot["used_bytes"] == snapshot["peak_bytes"] == snapshot["touched_bytes"] == 1088
    assert snapshot["free_bytes"] == snapshot["arena_bytes"] - 1088
    assert (snapshot["blocks"], snapshot["clients"], snapshot["granted_total"]) == (1, 1, 1)
    await sidecar.stop()


async def test_freed_bytes_are_cleared_when_isolation_is_on(tmp_path):
    async with run_sidecar(tmp_path, clear_on_free=True), await connect_client(tmp_path) as client:
        handle = await client.put(np.full(100, 7, np.uint8), invocation="i", deadline=make_deadline())
        client.release(handle)

        again = await client.allocate(100, invocation="j", deadline=make_deadline())

        assert again.handle.offset == handle.offset
        assert not again.array.any()


def test_everything_works_on_uvloop_too(tmp_path):
    async def use_sidecar() -> None:
        async with run_sidecar(tmp_path) as sidecar, await connect_client(tmp_path) as client:
            async with await TensorClient.connect(str(tmp_path / "s"), "reader", NODE) as reader:
                handle = await client.put(np.arange(9), invocation="i", deadline=make_deadline())
                assert reader.view(handle).sum() == 36
                reader.release(handle)
                await reader.stats()
                await client.put(np.arange(9), invocation="i", deadline=make_deadline(0.05))
                await wait_until(lambda: sidecar.snapshot()["blocks"] == 0)
                assert sidecar.snapshot()["freed_total"] == {"released": 1, "expired": 1}
                waiting = [
                    client.put(np.zeros(500_000, np.uint8), invocation="i", deadline=make_deadline()) for _ in range(2)
                ]
                await asyncio.gather(*waiting)
            await _send_raw(tmp_path, b"\x00" * FRAME_BYTES)
            await sidecar.stop()
            await wait_until(lambda: not client.connected)
            async with run_sidecar(tmp_path):
                await client.wait_ready(20)

    uvloop.run(use_sidecar())
