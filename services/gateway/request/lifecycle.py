"""The one end of a request, however the work on it is left."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omnibus.errors import Fatal, OmnibusError
from services.gateway.request.request import ClientRequest


@asynccontextmanager
async def run_to_end(run: ClientRequest, left: str = "the client left") -> AsyncIterator[None]:
    """End ``run`` when the block is left, with its outcome; the deadline holds inside. ``left`` says why it would be
    cancelled. Raises ``DeadlineExceeded``."""
    try:
        async with asyncio.timeout(max(0.0, run.deadline - time.time())):
            yield
    except TimeoutError:
        error = run.deadline_error()
        run.fail(error)
        run.end("expired")
        raise error from None
    except (asyncio.CancelledError, GeneratorExit):
        run.fail(Fatal(left))
        run.end("cancelled")
        raise
    except BaseException as error:
        if isinstance(error, OmnibusError):
            run.fail(error)
        run.end("failed")
        raise
    run.end("done")
