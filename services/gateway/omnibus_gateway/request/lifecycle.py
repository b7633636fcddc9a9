"""Exactly one end of a request, on every exit path."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omnibus.errors import ClientClosed, OmnibusError, Rejected
from omnibus_gateway.request.ends import deadline_error
from omnibus_gateway.request.request import ClientRequest


@asynccontextmanager
async def run_to_end(run: ClientRequest, rejection: Rejected | None = None) -> AsyncIterator[None]:
    """End ``run`` with its outcome when the block exits; the deadline applies inside.

    ``rejection`` is the reason for a cancellation; if None, the client disconnected. Raises ``DeadlineExceeded``."""
    try:
        async with asyncio.timeout(max(0.0, run.deadline - time.time())):
            yield
    except TimeoutError:
        error = deadline_error(run.app, run.model)
        run.fail(error)
        run.end("expired")
        raise error from None
    except (asyncio.CancelledError, GeneratorExit):
        run.fail(rejection or ClientClosed("the client left"))
        run.end("cancelled")
        raise
    except BaseException as error:
        if isinstance(error, OmnibusError):
            run.fail(error)
        run.end("failed")
        raise
    run.end("done")
