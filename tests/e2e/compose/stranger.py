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
    refused = []

    async def hear(error: Exception) -> None:
        refused.append(str(error))

    who = {"user": user, "password": password} if user else {}
    try:
        bus = await nats.connect(URL, error_cb=hear, allow_reconnect=False, connect_timeout=WITHIN, **who)
    except nats.errors.Error as error:
        print("not let in:", error)
        return
    await bus.publish(subject, b"{}")
    await bus.subscribe(subject)
    for _ in range(2):  # the first ping may pass what waits to be sent
        await bus.flush(WITHIN)
    await bus.close()
    print(*refused, sep="\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
