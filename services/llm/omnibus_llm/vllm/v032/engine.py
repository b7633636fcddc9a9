"""The ``AsyncLLM`` of vLLM 0.32 as a ``omnibus_llm.vllm.protocol.VllmEngine``.

Entry points of an engine's processes. Nothing of vLLM is imported before they are called.
"""

import asyncio
import functools
import gc
import math
import multiprocessing
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from typing import Any

from omnibus.errors import BadRequest, Fatal, OmnibusError, StageFailed, StageUnavailable
from omnibus.process.tuning import die_with_parent
from omnibus_llm.engine.sampler import TokenLogprobs
from omnibus_llm.vllm.protocol import CacheBlockLayout, Generation, Launch, Tokens
from omnibus_llm.vllm.v032 import adapters, arguments
from omnibus_models import torchvision_cpu

# A spawned process imports this module for its target, before it imports vLLM for its arguments. vLLM imports
# torchvision if it is installed.
torchvision_cpu.install_operators()

# Garbage collection during imports takes a sixth of their time.
if multiprocessing.parent_process() is not None:
    gc.disable()

#: vLLM's own function, if this process was forked from a core, which has replaced it; else None, as it is in place.
_worker_main: Callable[..., None] | None = None


def run_core_process(*args: Any, parent: int, **kwargs: Any) -> None:
    """Run an engine core that dies with ``parent``.

    It ignores signals from the parent's terminal.
    """
    bind_to_parent = die_with_parent(parent=parent)
    if bind_to_parent is not None:
        bind_to_parent()  # the kernel watches the thread that started this process; see ``VllmEngineProcess``
    os.setpgrp()
    from vllm.v1.engine import core
    from vllm.v1.executor.multiproc_executor import WorkerProc

    from omnibus_llm.vllm.v032 import model_registry

    gc.enable()
    model_registry.register_models(model_registry.find_architectures(kwargs["vllm_config"]))
    global _worker_main
    _worker_main = WorkerProc.worker_main
    WorkerProc.worker_main = staticmethod(run_worker_process)  # for an engine with several workers
    core.EngineCoreProc.run_engine_core(*args, **kwargs)


def run_worker_process(*args: Any, **kwargs: Any) -> None:
    """Run a worker of an engine that has several; it ends with its core."""
    from vllm.v1.executor.multiproc_executor import WorkerProc

    from omnibus_llm.vllm.v032 import model_registry

    gc.enable()
    model_registry.register_models(model_registry.find_architectures(kwargs["vllm_config"]))
    (_worker_main or WorkerProc.worker_main)(*args, **kwargs)


torchvision_cpu.install_operators()


_SHUTDOWN_TIMEOUT_SECONDS = 5.0  # seconds; then the engine core is killed


class VllmEngineProcess:
    """One engine core in a separate process, and its client."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._llm: Any = None
        self._parameters = 0
        self._keeps_rows = False
        self._memory: dict[str, int] = {}
        self._layout: CacheBlockLayout | None = None
        self._adapters = adapters.EngineAdapters(launch)
        self._ended = asyncio.Event()
        self._sentinels: list[int] = []
        # The engine core dies with the thread that started it, so this thread stays.
        self._thread = ThreadPoolExecutor(1, f"{launch.component}-vllm")

    async def start(self) -> None:
        arguments.set_environment(self._launch)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._construct_engine)
        for process in self._llm.engine_core.resources.engine_manager.processes:
            self._sentinels.append(process.sentinel)
            loop.add_reader(process.sentinel, self._on_process_exit)
        workers = await self._llm.collective_rpc("omnibus_begin", args=(self._launch.rows,))
        self._parameters = sum(worker["parameters"] for worker in workers)
        self._keeps_rows = any(worker["keeps_rows"] for worker in workers)
        for worker in await self._llm.collective_rpc("omnibus_memory"):  # each has a part of the total
            self._memory = {name: self._memory.get(name, 0) + value for name, value in worker.items()}
        await self._adapters.load_declared(self._llm)
        if self._launch.halves:
            layouts = await self._llm.collective_rpc("omnibus_cache")  # of each worker: the same, of all heads
            self._layout = CacheBlockLayout(**layouts[0])

    @property
    def layout(self) -> CacheBlockLayout:
        if self._layout is None:
            raise Fatal("this engine was not started for prefill and decode")
        return self._layout

    @property
    def keeps_rows(self) -> bool:
        return self._keeps_rows

    async def generate(self, generation: Generation) -> AsyncGenerator[Tokens, None]:
        with self._translate_errors():
            async with self._adapters.use(generation.adapter, generation.adapter_source) as adapter:
                stream = self._llm.generate(
                    *self._build_request(generation), priority=generation.priority, lora_request=adapter
                )
                async with aclosing(stream) as outputs:
                    async for output in outputs:
                        tokens = _read_tokens(output)
                        if tokens is not None:
                            yield tokens

    async def deliver(self, generation: Generation, consume: Callable[[Tokens], bool]) -> None:
        from omnibus_llm.vllm.v032.delivery import deliver_outputs

        def consume_output(output: Any) -> bool:
            tokens = _read_tokens(output)
            return tokens is not None and consume(tokens)

        with self._translate_errors():
            async with self._adapters.use(generation.adapter, generation.adapter_source) as adapter:
                prompt, params, id = self._build_request(generation)
                options = {"priority": generation.priority, "lora_request": adapter}
                await deliver_outputs(self._llm, consume_output, id, prompt, params, **options)

    def _build_request(self, generation: Generation) -> tuple[Any, Any, str]:
        from omnibus_llm.vllm.v032.inputs import require_inputs

        if generation.media:
            require_inputs(generation, self._llm.model_config)
        return _engine_request(generation, self._keeps_rows)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise this project's errors in place of vLLM's."""
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            yield
        except EngineDeadError:
            raise self._unavailable_error() from None
        except VLLMValidationError as error:
            raise BadRequest(f"the engine rejects this request: {error}") from None
        except EngineGenerateError as error:
            raise self._unavailable_error() if self._llm.errored else _to_omnibus_error(error) from None

    async def wait_for_exit(self) -> None:
        await self._ended.wait()

    async def stop(self) -> None:
        self._fail_waiting()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._shut_down)
        await asyncio.to_thread(self._thread.shutdown)

    def stats(self) -> dict[str, Any]:
        counts = {**self._memory, **self._counts.to_json(), **self._adapters.stats()}
        return {"parameters": self._parameters, **counts}

    def _unavailable_error(self) -> StageUnavailable:
        name = self._launch.component
        return StageUnavailable(f"the engine of {name} died and is restarting; send the request again", stage=name)

    def _on_process_exit(self) -> None:
        self._fail_waiting()
        self._ended.set()

    def _fail_waiting(self) -> None:
        """Fail all requests that wait for tokens, and stop watching processes."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._llm is not None:
            self._llm.output_processor.propagate_error(EngineDeadError())
            if self._llm.output_handler is not None:
                self._llm.output_handler.cancel()
        for sentinel in self._sentinels:
            asyncio.get_running_loop().remove_reader(sentinel)
        self._sentinels.clear()

    # In the thread

    def _construct_engine(self) -> None:
        gc.disable()  # it costs a sixth of the time of imports
        try:
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.core import EngineCoreProc

            from omnibus_llm.vllm.v032 import model_registry
            from omnibus_llm.vllm.v032.stats import EngineCounts, VllmStatLogger, register_vllm_metrics
        finally:
            gc.enable()
        model_registry.register_models(arguments.read_architectures(self._launch))
        self._counts = EngineCounts()
        target = EngineCoreProc.__dict__["run_engine_core"]
        EngineCoreProc.run_engine_core = functools.partial(run_core_process, parent=os.getpid())
        try:
            config = arguments.build_engine_config(self._launch)
            self._llm = AsyncLLM.from_vllm_config(
                config, stat_loggers=[functools.partial(VllmStatLogger, counts=self._counts)], disable_log_stats=True
            )
        finally:
            EngineCoreProc.run_engine_core = target
        register_vllm_metrics()

    def _shut_down(self) -> None:
        import psutil

        llm, self._llm = self._llm, None
        if llm is None:
            return
        try:
            llm.shutdown(timeout=_SHUTDOWN_TIMEOUT_SECONDS)
        except psutil.NoSuchProcess:
            # The engine core exited while vLLM was killing it. vLLM stops there and leaves its sockets open. The
            # garbage collector then waits for them without a timeout, wherever it happens to run.
            llm.engine_core.resources()


def _engine_request(generation: Generation, keeps_rows: bool) -> tuple[Any, Any, str]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    from omnibus_llm.vllm.v032.hidden_states import ROWS_ARGUMENT
    from omnibus_llm.vllm.v032.inputs import engine_input
    from omnibus_llm.vllm.v032.kv_connector import DRAWS_ARGUMENT, LOAD_ARGUMENT, SAVE_ARGUMENT

    extra: dict[str, Any] = {}
    if generation.media:
        items = {medium.key: [medium.offset, *medium.shape] for medium in generation.media}
        extra["ec_transfer_params"] = {"place": generation.parcel, "items": items}
    if generation.spoken or generation.rows is not None:
        extra[ROWS_ARGUMENT] = generation.rows
    if generation.gives is not None:
        extra[SAVE_ARGUMENT] = generation.gives
    if generation.takes is not None:
        extra[LOAD_ARGUMENT] = generation.takes._asdict()
    if generation.draws:
        extra[DRAWS_ARGUMENT] = generation.draws
    settings = generation.sampling
    params = SamplingParams(
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        repetition_penalty=settings.repetition_penalty,
        seed=settings.seed % 2**63,
        ignore_eos=settings.ignore_eos,
        stop_token_ids=sorted(generation.ends),
        min_p=settings.min_p,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        logit_bias=dict(settings.logit_bias) or None,
        logprobs=settings.logprobs,
        min_tokens=settings.min_tokens,
        bad_words=list(settings.bad_words) or None,
        allowed_token_ids=list(settings.allowed) or None,
        structured_outputs=StructuredOutputsParams(grammar=settings.grammar) if settings.grammar else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        # Cached tokens are not computed, so their rows would be missing if none are kept.
        skip_reading_prefix_cache=generation.spoken and not keeps_rows,
        extra_args=extra,
    )
    return engine_input(generation), params, generation.id


def _read_tokens(output: Any) -> Tokens | None:
    [answer] = output.outputs
    ids, finish = list(answer.token_ids), answer.finish_reason
    if finish in (None, "stop", "length"):
        logprobs = (
            ()
            if answer.logprobs is None
            else [_read_logprobs(*each) for each in zip(ids, answer.logprobs, strict=True)]
        )
        return Tokens(ids, finish, logprobs, output.num_cached_tokens or 0) if ids else None
    raise StageFailed(f"the engine ended this request ({finish}); send it again")


def _read_logprobs(token: int, logprobs: dict[int, Any]) -> TokenLogprobs:
    """Return the likeliest tokens of a step, best first.

    ``logprobs`` includes the chosen token even if it is not one of them.
    """
    count = len(logprobs) - (logprobs[token].rank >= len(logprobs))
    best = sorted((each.rank, id, each.logprob) for id, each in logprobs.items())[:count]
    pairs = [(id, value) for _, id, value in best if value > -math.inf]
    return TokenLogprobs(logprobs[token].logprob, [id for id, _ in pairs], [value for _, value in pairs])


def _to_omnibus_error(error: Exception) -> OmnibusError:
    cause = error.__cause__
    return cause if isinstance(cause, OmnibusError) else StageFailed(f"the engine failed on this request: {cause!r}")
