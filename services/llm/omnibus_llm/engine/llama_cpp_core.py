"""A language model of a GGUF file: llama.cpp computes logits, the engine does everything else."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from omnibus.checkpoints.adapters import require_fitting_adapter
from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus.spare_places import count_spare_places
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.engine.separate_caches import NativeKeptPrompts
from omnibus_llm.engine.sequence import PromptGroups, PromptMember, Thinking
from omnibus_models.contract import PromptOptions, Thinker
from omnibus_models.llama_cpp import library
from omnibus_models.llama_cpp_thinker import LlamaCppThinker

#: Fewer tokens of context for each sequence are of no use.
MIN_CONTEXT = 16
#: A limit of the library.
MAX_SEQUENCES = 256


class LlamaCppCore(ThinkerCore):
    """A ``ThinkerCore`` of a GGUF ``file``, with ``kv_bytes`` of memory for keys and values.

    Memory for keys and values is allocated at the start. Without ``settings.context``, a sequence has at most the
    tokens that fit in its share of that. With ``sees``, prompts have images.
    """

    def __init__(self, file: Path, device: str, settings: ThinkSettings, kv_bytes: int, *, sees: bool = False) -> None:
        if device != "cpu":
            raise BadRequest(f"llama.cpp runs on the CPU here, not on {device!r}: set OMNIBUS_EXECUTOR_DEVICE=cpu")
        if settings.loadable.root:
            raise BadRequest(
                "llama.cpp loads no adapters while it serves: declare them, and unset OMNIBUS_EXECUTOR_ADAPTERS_DIR"
            )
        for adapter in settings.adapters.values():
            require_fitting_adapter(adapter, file)
        # Both libraries' threads wait actively: torch's would take the cores from those of llama.cpp.
        super().__init__("causal_lm", file, device, "float32", replace(settings, threads=1, adapters={}))
        self._settings, self._kv_bytes, self._sees = settings, kv_bytes, sees
        self.prompts = _SeparatePrompts()

    async def load(self) -> None:
        await library.require_loadable(self._source.checkpoint)
        await super().load()

    def _load_model(self) -> Thinker:
        return cast(Thinker, LlamaCppThinker(self._source.checkpoint, self._settings.adapters, self._sees))

    async def use_kept_prompt(self, sequence: Thinking, cache_key: str) -> int:
        """See ``ThinkerCore``. Prompts with images are not kept: their rows may attend to later ones."""
        return 0 if sequence.inputs.shape[1] > 1 else await super().use_kept_prompt(sequence, cache_key)

    async def _set_up(self) -> None:
        await self._compute(self._reserve)
        await super()._set_up()

    def _reserve(self) -> None:
        thinker, settings = cast(LlamaCppThinker, self.model), self._settings
        rows = settings.slots + count_spare_places(settings.slots)
        fitting_tokens = self._kv_bytes // (rows * thinker.token_bytes)
        context = min(thinker.context, settings.context or fitting_tokens)
        if context < MIN_CONTEXT:
            raise BadRequest(
                f"a context of {context} tokens is too short: raise `context` or OMNIBUS_LLAMA_CPP_KV_MIB, "
                "or lower `batch`"
            )
        self._limits = self._limits._replace(context=context)
        sequence_bytes = thinker.token_bytes * context
        kept = min(settings.slots, settings.kept_bytes // sequence_bytes)
        if rows + kept > MAX_SEQUENCES:
            raise BadRequest(f"llama.cpp has at most {MAX_SEQUENCES} sequences, not {rows + kept}: lower `batch`")
        self._kept = NativeKeptPrompts(kept, sequence_bytes, thinker)
        thinker.reserve_memory(rows + kept, context, settings.threads)


class _SeparatePrompts(PromptGroups):
    """No groups: copies of a prompt would take sequences beyond those of the slots."""

    @contextmanager
    def join(self, job: Job, options: PromptOptions, adapter: str = "") -> Iterator[PromptMember | None]:
        yield None
