"""The floors: cost of an HTTP echo and of a copy on this machine now.

    python -m tests.bench.floor PORT

serves ``POST /echo`` with uvicorn and FastAPI in one process, on uvloop and httptools: no bus, no graph, no other
process. A system with a FastAPI frontend cannot cost less per request.
"""

import statistics
import sys
import time

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

COPIED = 32 << 20  # bytes


class EchoRequest(BaseModel):
    seed: int
    text: str
    stream: bool = False
    tokens: int = 1


app = FastAPI()


@app.post("/echo")
async def reply_echo(request: EchoRequest) -> dict[str, int | bool]:
    return {"ok": True, "seed": request.seed}


def copy_ms(times: int = 16) -> float:
    """Median CPU ms to copy 32 MiB between arrays with all pages present."""
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    durations = []
    for _ in range(times):
        before = time.thread_time()
        np.copyto(target, source)
        durations.append(1000 * (time.thread_time() - before))
    return statistics.median(durations)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", loop="uvloop", http="httptools")
