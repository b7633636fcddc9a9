"""LoRA adapters in vLLM: declared ones are loaded before the first request, others when a request brings them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from omnibus.checkpoints.adapters import AdapterSource, LoraAdapter, read_adapter
from omnibus.errors import BadRequest, Fatal
from omnibus_llm.engine.model import AdapterSlots
from omnibus_llm.vllm.protocol import Launch

#: Ranks for which vLLM reserves memory.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def engine_arguments(launch: Launch) -> dict[str, Any]:
    """Return the arguments of an engine with the adapters of ``launch``; empty without any.

    Raises ``BadRequest`` for an adapter that cannot be used.
    """
    if not launch.adapters and not launch.loadable.root:
        return {}
    most = max([launch.loadable.rank, *(read_adapter(directory).rank for _, directory in launch.adapters)])
    rank = next((rank for rank in _RANKS if rank >= most), None)
    if rank is None:
        raise Fatal(f"an adapter has rank {most}, but vLLM takes at most {_RANKS[-1]}")
    # vLLM's kernels for CPUs read the last slot for rows without an adapter: an empty one adds nothing to them.
    slots = len(launch.adapters) + launch.loadable.slots + (launch.device == "cpu")
    return {"enable_lora": True, "max_loras": slots, "max_lora_rank": rank}


class EngineAdapters:
    """The adapters of one engine."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._llm: Any = None
        self._declared: dict[str, Any] = {}
        self._ids = count(len(launch.adapters) + 1)
        self._slots = AdapterSlots(launch.loadable, 0, self._replace)
        self._loaded: dict[int, Any] = {}  # the adapter in each slot

    async def load_declared(self, llm: Any) -> None:
        """Load the adapters of the launch into the engine ``llm``.

        Raises ``Fatal`` for one that does not fit the model: its first request would end the engine.
        """
        self._llm = llm
        if not self._launch.adapters:
            return
        from vllm.lora.request import LoRARequest

        for number, (name, directory) in enumerate(self._launch.adapters, 1):
            self._declared[name] = LoRARequest(name, number, str(directory))
            try:
                await llm.add_lora(self._declared[name])
            except Exception as error:  # errors of the worker arrive as those of the client
                raise Fatal(f"adapter {name} cannot be loaded: {error}") from error

    @asynccontextmanager
    async def use(self, name: str, source: AdapterSource | None) -> AsyncIterator[Any]:
        """Yield the ``LoRARequest`` of an adapter; None without one.

        The adapter stays in memory until the block ends. Raises as ``AdapterSlots.use``, and the library's error if the
        engine is dead.
        """
        if source is None:
            yield self._declared.get(name)
            return
        async with self._slots.use(name, source) as number:
            yield self._loaded[number]

    def stats(self) -> dict[str, int]:
        return {"loaded_adapters": len(self._slots)} if self._launch.loadable.root else {}

    async def _replace(self, number: int, adapter: LoraAdapter, digest: str) -> None:
        """Load ``adapter`` in place of the slot's: there must never be more adapters than slots."""
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.exceptions import EngineDeadError

        await self._remove(number)
        # Its digest is its name: by names the library shares prompts, and distinguishes adapters of a step.
        self._loaded[number] = LoRARequest(digest, next(self._ids), str(adapter.directory))
        try:
            await self._llm.add_lora(self._loaded[number])
        except EngineDeadError:
            raise
        except Exception as error:  # errors of the worker arrive as those of the client
            await self._remove(number)
            raise BadRequest(f"adapter {adapter.directory} does not fit this model: {error}") from error

    async def _remove(self, number: int) -> None:
        before = self._loaded.get(number)
        if before is not None:
            await self._llm.remove_lora(before.lora_int_id)
            del self._loaded[number]
