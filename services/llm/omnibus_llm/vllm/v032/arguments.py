"""Environment and arguments of an engine of vLLM 0.32, with checks."""

import json
import os
import platform
from typing import Any

from omnibus.checkpoints.heads import key_value_heads, require_whole_heads, vocabulary_size
from omnibus.errors import BadRequest, Fatal
from omnibus.spare_places import count_spare_places
from omnibus_llm.vllm.protocol import Launch
from omnibus_llm.vllm.v032 import adapters

#: Modalities whose towers are not loaded.
_TOWERS = ("image", "video", "audio")
#: Tokens of an n-gram from which the next ones are drafted.
_MIN_NGRAM, _MAX_NGRAM = 2, 4
#: Size of the KV cache on a CPU, where vLLM would take nearly all of the machine's memory.
_CPU_KV_BYTES = 512 << 20


def build_engine_config(launch: Launch) -> Any:
    """Return vLLM's configuration of an engine for ``launch``.

    Raises ``BadRequest`` for heads that cannot be divided, and for a draft model with other tokens. Raises ``Fatal``
    for models that vLLM's kernels do not support, and the library's errors.
    """
    _require_whole_heads(launch)
    _require_same_tokens(launch)
    config = build_engine_arguments(launch).create_engine_config()
    _require_kernels(config)
    if launch.goals:
        _set_scheduler(config)
    return config


def set_environment(launch: Launch) -> None:
    """Set vLLM's environment variables, except those that the operator has set."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads and connections: no forks of it
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # ``hidden_states`` and ``worker`` patch the first one
    }
    if launch.rows:
        variables["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"  # by one, see ``build_engine_arguments``
    if launch.device == "cpu":
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the worker runs in the engine core's process
        # Models run eagerly, and counting ranks of log probabilities would be compiled with the first request.
        variables["TORCHDYNAMO_DISABLE"] = "1"
        if launch.threads:
            variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(launch.threads)}
        elif launch.tensor_parallel * launch.pipeline_parallel > 1:
            variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # workers would be bound to a memory node each
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def build_engine_arguments(launch: Launch) -> Any:
    """Return vLLM's arguments of an engine for ``launch``."""
    from vllm.config import ECTransferConfig, KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    from omnibus_llm.vllm.v032.goal_scheduler import GOALS

    cpu = launch.device == "cpu"
    places = launch.slots + count_spare_places(launch.slots)
    return AsyncEngineArgs(
        model=str(launch.checkpoint),
        dtype=launch.dtype,
        seed=0,
        quantization=launch.quantization or None,
        speculative_config=_speculative_config(launch),
        # For a spoken answer one more token than the context holds is chosen and dropped; nothing computes it.
        max_model_len=launch.context + launch.rows,
        max_num_seqs=places,
        max_num_batched_tokens=max(places, min(launch.step_tokens, launch.context)),
        kv_cache_memory_bytes=launch.kv_bytes or (_CPU_KV_BYTES if cpu else None),
        block_size=32 if cpu else None,
        enforce_eager=cpu or launch.eager,
        gpu_memory_utilization=launch.memory,
        tensor_parallel_size=launch.tensor_parallel,
        pipeline_parallel_size=launch.pipeline_parallel,
        # None leaves the choice to vLLM, which disables it for models that cannot.
        enable_prefix_caching=None if launch.prefix_cache else False,
        limit_mm_per_prompt=dict.fromkeys(_TOWERS, 0),
        enable_mm_embeds=True,
        skip_mm_profiling=True,
        mm_processor_cache_gb=0,
        ec_transfer_config=ECTransferConfig(
            ec_connector="EmbeddingConnector",
            ec_connector_module_path="omnibus_llm.vllm.v032.embedding_connector",
            ec_role="ec_consumer",
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector="CacheConnector",
            kv_connector_module_path="omnibus_llm.vllm.v032.kv_connector",
            kv_role="kv_both",
        )
        if launch.halves
        else None,
        # The library of the transformers engine, so that both interpret a grammar in the same way.
        structured_outputs_config={"backend": "guidance"},
        worker_extension_cls="omnibus_llm.vllm.v032.worker.Worker",
        additional_config={GOALS: list(launch.goals)} if launch.goals else {},
        scheduling_policy="priority" if launch.goals.ttft else "fcfs",
        **adapters.engine_arguments(launch),
    )


def _speculative_config(launch: Launch) -> dict[str, Any] | None:
    """Return the configuration of drafts.

    N-grams need no second model: the tokens that followed them before are drafted again.
    """
    if not launch.speculative_tokens:
        return None
    common = {"num_speculative_tokens": launch.speculative_tokens}
    if launch.speculative_model is None:
        return {"method": "ngram", "prompt_lookup_min": _MIN_NGRAM, "prompt_lookup_max": _MAX_NGRAM, **common}
    model = {"model": str(launch.speculative_model), "draft_tensor_parallel_size": launch.tensor_parallel}
    return {"method": "draft_model", **model, **common}


def _set_scheduler(config: Any) -> None:
    """Budget the tokens of steps by goals; vLLM decides if steps overlap."""
    name = "AsyncGoalScheduler" if config.scheduler_config.async_scheduling else "GoalScheduler"
    config.scheduler_config.scheduler_cls = f"omnibus_llm.vllm.v032.goal_scheduler.{name}"


def _require_kernels(config: Any) -> None:
    """Raise ``Fatal`` for a model without kernels: vLLM finds out only at the first step, and dies."""
    if config.device_config.device_type != "cpu":
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    drafts = [] if config.speculative_config is None else [config.speculative_config.draft_model_config]
    for model in filter(None, (config.model_config, *drafts)):
        _require_integer_kernels(model)
        if model.get_head_size() not in sizes:
            raise Fatal(
                f"this model has heads of {model.get_head_size()}, but vLLM's kernels for CPUs take only "
                f"{', '.join(map(str, sizes))}; use omnibus_engines:transformers for it"
            )


def _require_integer_kernels(model: Any) -> None:
    """Raise ``Fatal`` if kernels for weights of 4 bits are missing.

    They are missing in the library that vLLM loads on x86 without AVX-512.
    """
    import torch

    about = getattr(model.hf_config, "quantization_config", None) or {}
    method, format = about.get("quant_method"), about.get("format")
    is_packed = method in ("awq", "gptq") or format == "pack-quantized"
    if is_packed and platform.machine() == "x86_64" and not torch.cpu._is_avx512_supported():
        raise Fatal(
            f"vLLM's kernels for weights in {format or method} need AVX-512, which this CPU does not have; use "
            "omnibus_engines:transformers, other weights, or a GPU"
        )


def _require_whole_heads(launch: Launch) -> None:
    for checkpoint in filter(None, (launch.checkpoint, launch.speculative_model)):
        heads = key_value_heads(checkpoint)
        if heads is not None:
            require_whole_heads(heads, launch.tensor_parallel)


def _require_same_tokens(launch: Launch) -> None:
    """Raise ``BadRequest`` if a draft model has other tokens than the model.

    Only their number can be compared.
    """
    if launch.speculative_model is None:
        return
    draft, own_size = vocabulary_size(launch.speculative_model), vocabulary_size(launch.checkpoint)
    if draft != own_size:
        raise BadRequest(
            f"OMNIBUS_VLLM_SPECULATIVE_MODEL={launch.speculative_model} has {draft} tokens and this model {own_size}: "
            "set one with the same tokenizer"
        )


def read_architectures(launch: Launch) -> list[str]:
    """Return the names of the model classes of ``launch``'s checkpoints."""
    architectures: list[str] = []
    for checkpoint in filter(None, (launch.checkpoint, launch.speculative_model)):
        architectures += json.loads((checkpoint / "config.json").read_text()).get("architectures", [])
    return architectures
