"""Interface that a version of vLLM has to provide. Small and without any of its types."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from omnibus.checkpoints.adapter_source import AdapterSource
from omnibus.executor.step_budget import NO_GOALS, StepGoals
from omnibus_models.contract import TokenSamplingParams
from services.llm.engine.adapter_slots import NO_ADAPTERS, AdapterLimits
from services.llm.engine.sampler import TokenLogprobs
from services.llm.vllm.shared_memory import Place


@dataclass(frozen=True)
class Launch:
    """Parameters for the start of an engine.

    ``slots``: most sequences in one step. ``context``: longest sequence. ``step_tokens``: most prompt
    tokens in one step. ``kv_bytes``: of the KV cache, 0: the engine's choice. ``threads``: of the
    CPU, 0: the engine's choice. ``memory``: share of a GPU's memory. ``rows``: whether hidden rows are
    asked for. ``halves``: whether caches of prompts come and go. ``goals``: what the tokens of a step are chosen for,
    ``step_tokens`` at most. ``prefix_cache``: whether prompts share what they have in common with earlier ones.
    ``adapters``: names and directories of LoRA adapters. ``loadable``: others that requests may bring.
    ``quantization``: of weights that the checkpoint has in full, by vLLM's name. ``speculative_tokens``: guessed in
    each step, 0: none; by the ``speculative_model`` of that checkpoint, without one by n-grams. ``tensor_parallel``
    GPUs share each layer, and ``pipeline_parallel`` groups of them have a part of the layers each.
    """

    component: str
    checkpoint: Path
    device: str
    dtype: str
    slots: int
    context: int
    step_tokens: int
    kv_bytes: int
    memory: float
    tensor_parallel: int
    eager: bool
    threads: int
    rows: bool = False
    halves: bool = False
    goals: StepGoals = NO_GOALS
    prefix_cache: bool = True
    adapters: tuple[tuple[str, Path], ...] = ()
    loadable: AdapterLimits = NO_ADAPTERS
    quantization: str = ""
    speculative_tokens: int = 0
    speculative_model: Path | None = None
    pipeline_parallel: int = 1


@dataclass(frozen=True)
class Medium:
    """One media item of a prompt.

    ``key`` is a hash of the embedding and its meta data: what has the same key is the same. Its rows
    replace the prompt's ids from ``start`` on; ``shape`` [n, H] lies at ``offset`` of the request's parcel
    in the engine's dtype.
    """

    key: str
    modality: str
    start: int
    shape: tuple[int, int]
    offset: int


class Positions(NamedTuple):
    """Rotary positions of a prompt: int32 [axes, T], and what is added to those of generated tokens."""

    prompt: Tensor
    delta: int


class CacheBlockLayout(NamedTuple):
    """Memory layout of an engine's caches: uint8 [layers, blocks, ``nbytes``] with ``tokens`` tokens in a block.

    Engines with the same ``name`` read each other's. ``blocks`` are all that this one has for its sequences.
    """

    name: str
    layers: int
    nbytes: int
    tokens: int
    blocks: int

    def count(self, length: int) -> int:
        """Blocks of a sequence of ``length`` tokens."""
        return -(-length // self.tokens)


class ExternalCache(NamedTuple):
    """A cache that was made elsewhere: of the first ``length`` ids, which need not be the true ones.

    ``delta`` is added to rotary positions behind it.
    """

    place: Place
    length: int
    delta: int


@dataclass(frozen=True)
class Generation:
    """One request.

    ``positions`` None: counted from 0. ``rows`` is where the hidden row of each position goes, float32 [H]
    one after the other. ``gives`` is where the cache of the prompt goes. ``draws`` is how many tokens of the answer
    were chosen elsewhere, the last of ``ids``: so many random numbers were used. Of requests that wait, the one with
    the least ``priority`` is first. ``adapter`` is the name of its LoRA adapter; empty: the model as it is.
    With an ``adapter_source`` that is where it is loaded from. Blocks of the prompt are shared with requests that have
    the same ``cache_salt`` and are ``spoken`` as well: then hidden rows are kept with the blocks, whether or not the
    request has ``rows``.
    """

    id: str
    ids: Sequence[int]
    media: Sequence[Medium]
    positions: Positions | None
    parcel: Place | None
    rows: Place | None
    sampling: TokenSamplingParams
    ends: frozenset[int]
    gives: Place | None = None
    takes: ExternalCache | None = None
    draws: int = 0
    priority: int = 0
    adapter: str = ""
    adapter_source: AdapterSource | None = None
    cache_salt: str = ""
    spoken: bool = False


class Tokens(NamedTuple):
    """The next tokens. ``finish`` is ``stop`` or ``length`` with the last ones; ``logprobs`` of each, if asked for.
    ``cached`` are the tokens of the prompt that the engine had from earlier ones."""

    ids: Sequence[int]
    finish: str | None
    logprobs: Sequence[TokenLogprobs] = ()
    cached: int = 0


class VllmEngine(Protocol):
    """One engine, started once. All of it is called on the event loop."""

    @property
    def layout(self) -> CacheBlockLayout:
        """Memory layout of the engine's caches; known once a launch with ``halves`` was started."""

    @property
    def keeps_rows(self) -> bool:
        """True if hidden rows are kept with blocks of prompts, so that ``spoken`` requests begin with those of earlier
        ones; known once it was started."""

    async def start(self) -> None:
        """Load the weights; takes long. Raises whatever the library raises."""

    def generate(self, asked: Generation) -> AsyncGenerator[Tokens, None]:
        """Tokens as they come; closing the generator aborts the request within a step.

        The rows of all positions but the last are written before its token comes, and the cache that is
        given before the first token. Raises ``BadRequest``, as ``AdapterSlots.use`` for an adapter that comes with it,
        ``StageFailed``, and ``StageUnavailable`` once the engine is dead.
        """

    async def deliver(self, asked: Generation, consume: Callable[[Tokens], bool]) -> None:
        """Call ``consume`` with the tokens of ``generate``, in the turns of the event loop in which they come: no task
        is woken for each. Returns once there are no more, or ``consume`` has returned True.

        A cancellation aborts the request within a step. Raises as ``generate`` does, and what ``consume`` raises.
        """

    async def wait_for_exit(self) -> None:
        """Wait until the engine is dead."""

    async def stop(self) -> None:
        """End it and everything it has started. Stopping twice is harmless."""

    def stats(self) -> dict[str, Any]:
        """Counters: parameters, used, waiting, tokens, prompt_tokens, kv_usage, prefix_hits, prefix_hit_rate; of memory
        kv_bytes, kv_bytes_per_token, engine_gpu_bytes."""
