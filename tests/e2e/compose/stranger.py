"""Runs in a container with ``python -c``, and prints what the bus rejects.

Arguments are USER PASSWORD SUBJECT; each rejection is one line.
"""

import asyncio
import sys

import nats
import nats.errors

URL = "nats://nats:4222"
WITHIN = 5  # seconds


async def main(user: str, password: str, subject: str) -> None:
    """Connect, publish to ``subject`` and subscribe to it; without a user, send no credentials."""
    messages = []

    async def collect_error(error: Exception) -> None:
        messages.append(str(error))

    credentials = {"user": user, "password": password} if user else {}
    try:
        bus = await nats.connect(
            URL, error_cb=collect_error, allow_reconnect=False, connect_timeout=WITHIN, **credentials
        )
    except nats.errors.Error as error:
        print("not let in:", error)
        return
    await bus.publish(subject, b"{}")
    await bus.subscribe(subject)
    for _ in range(2):  # the first ping may pass what waits to be sent
        await bus.flush(WITHIN)
    await bus.close()
    print(*messages, sep="\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
