"""LoRA adapters as vLLM loads them: all that are declared, with a slot for each, before the first request."""

from typing import Any

from omnibus.checkpoints.adapters import read_adapter
from omnibus.errors import Fatal
from services.llm.vllm.protocol import Launch

#: Ranks that vLLM reserves memory for.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def engine_arguments(launch: Launch) -> dict[str, Any]:
    """The arguments of an engine with the adapters of ``launch``; empty without any.

    Raises ``BadRequest`` for an adapter that cannot be used.
    """
    if not launch.adapters:
        return {}
    most = max(read_adapter(directory).rank for _, directory in launch.adapters)
    rank = next((rank for rank in _RANKS if rank >= most), None)
    if rank is None:
        raise Fatal(f"an adapter has rank {most}, and vLLM takes {_RANKS[-1]} at most")
    # vLLM's kernels for CPUs read the last slot for rows without an adapter: one that stays empty adds nothing to them.
    slots = len(launch.adapters) + (launch.device == "cpu")
    return {"enable_lora": True, "max_loras": slots, "max_lora_rank": rank}


async def load_adapters(llm: Any, launch: Launch) -> dict[str, Any]:
    """Load the adapters of ``launch`` and return the ``LoRARequest`` of each by its name.

    Raises ``Fatal`` for one that does not fit the model: with its first request it would end the engine.
    """
    if not launch.adapters:
        return {}
    from vllm.lora.request import LoRARequest

    found = {
        name: LoRARequest(name, number, str(directory)) for number, (name, directory) in enumerate(launch.adapters, 1)
    }
    for name, request in found.items():
        try:
            await llm.add_lora(request)
        except Exception as error:  # whatever its worker raises comes as the client's own errors
            raise Fatal(f"adapter {name} cannot be loaded: {error}") from error
    return found
