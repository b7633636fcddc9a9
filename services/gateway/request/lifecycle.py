"""The one end of a request, however the work on it is left."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omnibus.errors import ClientClosed, OmnibusError, Rejected
from services.gateway.request.ends import deadline_error
from services.gateway.request.request import ClientRequest


@asynccontextmanager
async def run_to_end(run: ClientRequest, cancelled: Rejected | None = None) -> AsyncIterator[None]:
    """End ``run`` when the block is left, with its outcome; the deadline holds inside. ``cancelled`` says why it would
    be cancelled; if None, the client left. Raises ``DeadlineExceeded``."""
    try:
        async with asyncio.timeout(max(0.0, run.deadline - time.time())):
            yield
    except TimeoutError:
        error = deadline_error(run.app, run.model)
        run.fail(error)
        run.end("expired")
        raise error from None
    except (asyncio.CancelledError, GeneratorExit):
        run.fail(cancelled or ClientClosed("the client left"))
        run.end("cancelled")
        raise
    except BaseException as error:
        if isinstance(error, OmnibusError):
            run.fail(error)
        run.end("failed")
        raise
    run.end("done")
