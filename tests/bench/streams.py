"""Copies by asyncio streams: ``python -m tests.bench.streams LOOP source|sink HOST PORT MIB COUNT``.

LOOP is ``asyncio``, or ``uvloop``, which services use. Each end prints its CPU seconds, after a first copy that is not
counted.
"""

import asyncio
import sys
import time

import uvloop

_SLICE_BYTES = 1 << 20


async def _serve_source(host: str, port: int, nbytes: int, count: int) -> None:
    result: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    data = memoryview(bytearray(nbytes))

    async def send_blocks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = 0.0
        for number in range(count + 1):
            await reader.readexactly(1)
            for at in range(0, nbytes, _SLICE_BYTES):
                writer.write(data[at : at + _SLICE_BYTES])
                await writer.drain()
            if number == 0:
                began = time.process_time()
        await reader.read()
        result.set_result(time.process_time() - began)
        writer.close()

    async with await asyncio.start_server(send_blocks, host, port):
        print("ready", flush=True)
        print(await result, flush=True)


async def _run_sink(host: str, port: int, nbytes: int, count: int) -> None:
    reader, writer = await asyncio.open_connection(host, port, limit=_SLICE_BYTES)
    target, began = memoryview(bytearray(nbytes)), 0.0
    for number in range(count + 1):
        writer.write(b"x")
        at = 0
        while at < nbytes:
            piece = await reader.read(min(nbytes - at, _SLICE_BYTES))
            target[at : at + len(piece)] = piece
            at += len(piece)
        if number == 0:
            began = time.process_time()
    print(time.process_time() - began, flush=True)
    writer.close()


if __name__ == "__main__":
    _, loop, role, host, port, mib, count = sys.argv
    run = {"source": _serve_source, "sink": _run_sink}[role]
    {"asyncio": asyncio.run, "uvloop": uvloop.run}[loop](run(host, int(port), int(mib) << 20, int(count)))
