"""AsyncLLM of vLLM 0.32 behind ``services.llm.vllm.protocol.VllmEngine``."""

import asyncio
import functools
import gc
import json
import math
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

from omnibus_models import torchvision_cpu

torchvision_cpu.install_operators()

from omnibus.checkpoints.heads import key_value_heads, require_whole_heads  # noqa: E402
from omnibus.errors import BadRequest, Fatal, OmnibusError, StageFailed, StageUnavailable  # noqa: E402
from services.llm.engine.sampler import TokenLogprobs  # noqa: E402
from services.llm.vllm.protocol import CacheBlockLayout, Generation, Launch, Tokens  # noqa: E402
from services.llm.vllm.v032 import adapters  # noqa: E402
from services.llm.vllm.v032 import process as v032_process  # noqa: E402

#: Modalities whose towers are not loaded.
_TOWERS = ("image", "video", "audio")
_SHUTDOWN_TIMEOUT_SECONDS = 5.0  # seconds; then the engine core is killed
#: Tokens of an n-gram by which the next ones are guessed.
_MIN_NGRAM, _MAX_NGRAM = 2, 4
#: Of the KV cache on a CPU, where vLLM would take nearly all of the machine's memory.
_CPU_KV_BYTES = 512 << 20


class VllmEngineProcess:
    """One engine core in a process of its own, and the client that talks to it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._llm: Any = None
        self._parameters = 0
        self._memory: dict[str, int] = {}
        self._layout: CacheBlockLayout | None = None
        self._adapters = adapters.EngineAdapters(launch)
        self._ended = asyncio.Event()
        self._sentinels: list[int] = []
        # The engine core dies with the thread that has started it, so this thread stays.
        self._thread = ThreadPoolExecutor(1, f"{launch.component}-vllm")

    async def start(self) -> None:
        _set_environment(self._launch)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._construct_engine)
        for process in self._llm.engine_core.resources.engine_manager.processes:
            self._sentinels.append(process.sentinel)
            loop.add_reader(process.sentinel, self._on_process_exit)
        self._parameters = sum(await self._llm.collective_rpc("omnibus_begin", args=(self._launch.rows,)))
        for worker in await self._llm.collective_rpc("omnibus_memory"):  # each has a part of the whole
            self._memory = {name: self._memory.get(name, 0) + value for name, value in worker.items()}
        await self._adapters.load_declared(self._llm)
        if self._launch.halves:
            found = await self._llm.collective_rpc("omnibus_cache")  # of each worker: the same, of all heads
            self._layout = CacheBlockLayout(**found[0])

    @property
    def layout(self) -> CacheBlockLayout:
        if self._layout is None:
            raise Fatal("this engine was not started for halves of a model")
        return self._layout

    async def generate(self, asked: Generation) -> AsyncGenerator[Tokens, None]:
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            async with self._adapters.use(asked.adapter, asked.adapter_source) as adapter:
                stream = self._llm.generate(*_engine_request(asked), priority=asked.priority, lora_request=adapter)
                async with aclosing(stream) as outputs:
                    async for output in outputs:
                        tokens = _read_tokens(output)
                        if tokens is not None:
                            yield tokens
        except EngineDeadError:
            raise self._unavailable_error() from None
        except VLLMValidationError as error:
            raise BadRequest(f"the engine does not take this request: {error}") from None
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
        return StageUnavailable(f"the engine of {name} died; it is started again, send the request again", stage=name)

    def _on_process_exit(self) -> None:
        self._fail_waiting()
        self._ended.set()

    def _fail_waiting(self) -> None:
        """Tell whoever waits for tokens that there will be none, and listen no more."""
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
        gc.disable()  # while modules are read it costs a sixth of their time
        try:
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.core import EngineCoreProc

            from services.llm.vllm.v032 import model_registry
            from services.llm.vllm.v032.stats import EngineCounts, VllmStatLogger, register_vllm_metrics
        finally:
            gc.enable()
        model_registry.register_models(_read_architectures(self._launch.checkpoint))
        self._counts = EngineCounts()
        target = EngineCoreProc.__dict__["run_engine_core"]
        EngineCoreProc.run_engine_core = functools.partial(v032_process.run_core_process, parent=os.getpid())
        try:
            heads = key_value_heads(self._launch.checkpoint)
            if heads is not None:
                require_whole_heads(heads, self._launch.tensor_parallel)
            config = _engine_arguments(self._launch).create_engine_config()
            _require_kernels(config)
            if self._launch.goals:
                _set_scheduler(config)
            self._llm = AsyncLLM.from_vllm_config(
                config, stat_loggers=[functools.partial(VllmStatLogger, counts=self._counts)], disable_log_stats=True
            )
        finally:
            EngineCoreProc.run_engine_core = target
        register_vllm_metrics()

    def _shut_down(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown(timeout=_SHUTDOWN_TIMEOUT_SECONDS)


def _set_environment(launch: Launch) -> None:
    """vLLM takes these from the environment alone; what an operator has set stays."""
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads and connections: no forks of it
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # ``tap`` knows the first one
    }
    if launch.device == "cpu":
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the worker lives in the engine core's process
        # Models run as they are, and what counts ranks of log probabilities would be compiled with the first request.
        wanted["TORCHDYNAMO_DISABLE"] = "1"
        if launch.threads:
            wanted |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(launch.threads)}
        elif launch.tensor_parallel > 1:  # workers would be bound to a memory node each, of which there may be one
            wanted["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def _engine_arguments(launch: Launch) -> Any:
    from vllm.config import ECTransferConfig, KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    from services.llm.vllm.v032.goal_scheduler import GOALS

    cpu = launch.device == "cpu"
    return AsyncEngineArgs(
        model=str(launch.checkpoint),
        dtype=launch.dtype,
        seed=0,
        quantization=launch.quantization or None,
        speculative_config=_speculative_config(launch),
        max_model_len=launch.context,
        max_num_seqs=launch.slots,
        max_num_batched_tokens=max(launch.slots, min(launch.step_tokens, launch.context)),
        kv_cache_memory_bytes=launch.kv_bytes or (_CPU_KV_BYTES if cpu else None),
        block_size=32 if cpu else None,
        enforce_eager=cpu or launch.eager,
        gpu_memory_utilization=launch.memory,
        tensor_parallel_size=launch.tensor_parallel,
        # None is vLLM's own choice, which is no for models that cannot.
        enable_prefix_caching=None if launch.prefix_cache else False,
        limit_mm_per_prompt=dict.fromkeys(_TOWERS, 0),
        enable_mm_embeds=True,
        skip_mm_profiling=True,
        mm_processor_cache_gb=0,
        ec_transfer_config=ECTransferConfig(
            ec_connector="EmbeddingConnector",
            ec_connector_module_path="services.llm.vllm.v032.embedding_connector",
            ec_role="ec_consumer",
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector="CacheConnector",
            kv_connector_module_path="services.llm.vllm.v032.kv_connector",
            kv_role="kv_both",
        )
        if launch.halves
        else None,
        # The library of the transformers engine, so that both read one grammar in the same way.
        structured_outputs_config={"backend": "guidance"},
        worker_extension_cls="services.llm.vllm.v032.worker.Worker",
        additional_config={GOALS: list(launch.goals)} if launch.goals else {},
        scheduling_policy="priority" if launch.goals.ttft else "fcfs",
        **adapters.engine_arguments(launch),
    )


def _speculative_config(launch: Launch) -> dict[str, Any] | None:
    """N-grams need no second model: what follows them is what followed them before."""
    if not launch.speculative_tokens:
        return None
    lengths = {"prompt_lookup_min": _MIN_NGRAM, "prompt_lookup_max": _MAX_NGRAM}
    return {"method": "ngram", "num_speculative_tokens": launch.speculative_tokens, **lengths}


def _set_scheduler(config: Any) -> None:
    """Let steps have as many tokens as goals allow; whether they overlap is what vLLM has found best."""
    name = "AsyncGoalScheduler" if config.scheduler_config.async_scheduling else "GoalScheduler"
    config.scheduler_config.scheduler_cls = f"services.llm.vllm.v032.goal_scheduler.{name}"


def _require_kernels(config: Any) -> None:
    """vLLM itself finds out at the first step, and dies."""
    if config.device_config.device_type != "cpu":
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size, sizes = config.model_config.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise Fatal(
            f"this model has heads of {size}, and vLLM's kernels for CPUs take only {', '.join(map(str, sizes))}; "
            "use services.engines:transformers for it"
        )


def _read_architectures(checkpoint: Path) -> list[str]:
    found: list[str] = json.loads((checkpoint / "config.json").read_text()).get("architectures", [])
    return found


def _engine_request(asked: Generation) -> tuple[Any, Any, str]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    from services.llm.vllm.v032.hidden_states import ROWS_ARGUMENT
    from services.llm.vllm.v032.inputs import engine_input
    from services.llm.vllm.v032.kv_connector import DRAWS_ARGUMENT, LOAD_ARGUMENT, SAVE_ARGUMENT

    extra: dict[str, Any] = {}
    if asked.media:
        items = {medium.key: [medium.offset, *medium.shape] for medium in asked.media}
        extra["ec_transfer_params"] = {"place": asked.parcel, "items": items}
    if asked.rows is not None:
        extra[ROWS_ARGUMENT] = asked.rows
    if asked.gives is not None:
        extra[SAVE_ARGUMENT] = asked.gives
    if asked.takes is not None:
        extra[LOAD_ARGUMENT] = asked.takes._asdict()
    if asked.draws:
        extra[DRAWS_ARGUMENT] = asked.draws
    chosen = asked.sampling
    params = SamplingParams(
        max_tokens=chosen.max_tokens,
        temperature=chosen.temperature,
        top_p=chosen.top_p,
        top_k=chosen.top_k,
        repetition_penalty=chosen.repetition_penalty,
        seed=chosen.seed % 2**63,
        ignore_eos=chosen.ignore_eos,
        stop_token_ids=sorted(asked.ends),
        min_p=chosen.min_p,
        presence_penalty=chosen.presence_penalty,
        frequency_penalty=chosen.frequency_penalty,
        logit_bias=dict(chosen.logit_bias) or None,
        logprobs=chosen.logprobs,
        structured_outputs=StructuredOutputsParams(grammar=chosen.grammar) if chosen.grammar else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        # A row that is taken from the cache would not be computed, and so not be seen. Those of a prompt whose
        # cache comes from elsewhere have been seen there.
        skip_reading_prefix_cache=asked.rows is not None and asked.takes is None,
        extra_args=extra,
    )
    return engine_input(asked), params, asked.id


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


def _read_logprobs(token: int, found: dict[int, Any]) -> TokenLogprobs:
    """The likeliest tokens of a step, best first; the chosen one is among ``found`` though it may not be of them."""
    count = len(found) - (found[token].rank >= len(found))
    best = sorted((each.rank, id, each.logprob) for id, each in found.items())[:count]
    kept = [(id, value) for _, id, value in best if value > -math.inf]
    return TokenLogprobs(found[token].logprob, [id for id, _ in kept], [value for _, value in kept])


def _to_omnibus_error(error: Exception) -> OmnibusError:
    cause = error.__cause__
    return cause if isinstance(cause, OmnibusError) else StageFailed(f"the engine failed on this request: {cause!r}")
