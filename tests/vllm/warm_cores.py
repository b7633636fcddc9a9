"""Engine cores forked from one process that has imported vLLM.

Otherwise each core would import for seconds before it reads its model, and a run of these tests starts a score of them.
Executors' cores in tests of whole systems start as in production.
"""

import functools
import multiprocessing
import os
import threading
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Any

import pytest

from omnibus_llm.vllm.v032 import engine as core_process

#: What a core and its worker import until they serve.
_MODULES = (
    "tests.vllm.warm_cores",
    "omnibus_llm.vllm.v032.worker",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen2_5_vl",
)
#: The process that forks must have one thread.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@functools.cache
def start_fork_server() -> ForkServerContext:
    """Start the process that imports and forks, without waiting for it.

    It ends with this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_MODULES))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _ONE_THREAD.items():
            patch.setenv(name, value)
        forkserver.ensure_running()
    return context


def fork_engine_cores(patch: pytest.MonkeyPatch) -> None:
    """Let engines of this process fork their cores."""
    start_fork_server()
    patch.setattr(core_process, "run_core_process", _run_forked_core)
    patch.setattr("vllm.v1.engine.utils.get_mp_context", start_fork_server)


def _run_forked_core(*args: Any, parent: int, **kwargs: Any) -> None:
    # As long as it lives so does the process that has forked it: it has to see for itself that the tests have gone.
    threading.Thread(target=_exit_with_tests, daemon=True).start()
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the environment is that of the process that forks
    core_process.run_core_process(*args, parent=os.getppid(), **kwargs)


def _exit_with_tests() -> None:
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os._exit(1)
