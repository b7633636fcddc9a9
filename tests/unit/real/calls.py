"""Calls of unit tasks in this process, and files for them."""

from typing import Any

import numpy as np

from omnibus.encoding.audio import encode_wav, to_pcm16
from omnibus.errors import OmnibusError
from omnibus.task.execute import execute_task
from tests.unit.jobs import MemoryJob


async def call_task(task: Any, **inputs: Any) -> MemoryJob:
    """Run a loaded unit task once, as its executor does."""
    job = MemoryJob(inputs, wants=tuple(task.outputs))
    await execute_task(task, job)
    return job


async def call_in_vain(task: Any, **inputs: Any) -> OmnibusError:
    """Return the error of a call."""
    try:
        await call_task(task, **inputs)
    except OmnibusError as error:
        return error
    raise AssertionError("the call raised no error")


def parts_of(job: MemoryJob, output: str) -> list[dict[str, Any]]:
    return [item.data for item in job.outputs[output].items]


def to_file(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return a WAV file as a task gets a placed one."""
    return np.frombuffer(encode_wav(to_pcm16(samples), rate), np.uint8)
