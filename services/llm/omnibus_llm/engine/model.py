"""One loaded language model with its engine, for all its components.

Token sequences of banned words, by vLLM's rule.

See ``SamplingParams.update_from_tokenizer``.

LoRA adapters of requests: the first request loads one, and the least recently used is evicted.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Sequence as Rows
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from omnibus.checkpoints.adapters import AdapterSource, LoraAdapter, open_adapter
from omnibus.checkpoints.generation_config import read_sampling
from omnibus.errors import BadRequest, ContextTooLong, StageUnavailable
from omnibus.executor.runner import Item
from omnibus.executor.scheduler import Schedule
from omnibus.executor.step_budget import NO_GOALS, StepGoals
from omnibus_engines.component import ComponentSource, run_in_pool
from omnibus_llm.engine.admission import admit_decoder
from omnibus_llm.engine.engine import EngineLimits, HostedDecoder
from omnibus_llm.engine.history import fit_history
from omnibus_llm.engine.kept_prompts import KeptPrompts
from omnibus_llm.engine.media_admission import admit_thinker
from omnibus_llm.engine.params import (
    MAX_TRUNCATED_CONTEXTS,
    TextGenerationParams,
    max_answer_tokens,
    truncate_prompt,
    unknown_adapter_error,
)
from omnibus_llm.engine.sampler import Grammars, GrammarState
from omnibus_llm.engine.sequence import PromptGroups, ThinkFeed, Thinking
from omnibus_models.adapters import attach_adapters, replace_adapter
from omnibus_models.contract import Encoded, PrefillInputs, Thinker, TokenizedPrompt
from omnibus_models.device import copy_to_device
from omnibus_models.families.causal_lm import OwnDecoder
from omnibus_models.families.multimodal_lm import OwnThinker

#: Most sequences of one request.
MAX_SEQUENCES = 1000


def ban_words(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the sequences of ``words``, with and without a leading space.

    The first form is that of a text that starts with the word. The form with a space is banned only if it has other
    tokens but the same number of them. Raises ``BadRequest`` for a word without tokens.
    """
    sequences: list[tuple[int, ...]] = []
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced_ids = tuple(tokenizer.encode(f" {word.lstrip()}", add_special_tokens=False))
        if not bare:
            raise BadRequest(f"the bad word {word!r} has no tokens; remove it", param="bad_words")
        sequences.append(bare)
        if spaced_ids and spaced_ids[0] != bare[0] and len(spaced_ids) == len(bare):
            sequences.append(spaced_ids)
    if len(sequences) > MAX_SEQUENCES:
        raise BadRequest(
            f"bad_words are {len(sequences)} sequences of tokens; at most {MAX_SEQUENCES} are allowed",
            param="bad_words",
        )
    return tuple(sequences)


_DIRECTORY_SETTING, _RANK_SETTING = "OMNIBUS_EXECUTOR_ADAPTERS_DIR", "OMNIBUS_EXECUTOR_ADAPTER_RANK"


class AdapterLimits(NamedTuple):
    """Limits of adapters that requests bring.

    ``root`` is the directory to load them from, empty for none. ``slots`` is the number in memory, ``rank`` the largest
    rank.
    """

    root: str = ""
    slots: int = 0
    rank: int = 0


NO_ADAPTERS = AdapterLimits()

#: Loads an adapter in place of the one with that number; its files have this digest.
AdapterLoad = Callable[[int, LoraAdapter, str], Awaitable[None]]


class _UsedSlot:
    """An adapter in memory, and how many requests use it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.users = 0


class AdapterSlots:
    """Adapters by the digest of their files. Their numbers start at ``first``; ``load`` is called one at a time."""

    def __init__(self, limits: AdapterLimits, first: int, load: AdapterLoad) -> None:
        self._limits = limits
        self._numbers = range(first, first + limits.slots)
        self._load = load
        self._used: OrderedDict[str, _UsedSlot] = OrderedDict()  # least recently used first
        self._loading = asyncio.Lock()
        self._released = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of adapters in memory."""
        return len(self._used)

    @asynccontextmanager
    async def use(self, name: str, source: AdapterSource) -> AsyncIterator[int]:
        """Yield the number of the adapter at ``source``.

        The adapter stays in memory until the block ends. Waits while all slots are in use. ``name`` is its name in the
        request. Raises as ``open_adapter`` does, and ``BadRequest`` for an adapter that does not fit.
        """
        slot = self._used.get(source.sha256)
        if slot is None:
            async with self._loading:
                slot = self._used.get(source.sha256) or await self._load_adapter(name, source)
                slot.users += 1
        else:
            slot.users += 1
        self._used.move_to_end(source.sha256)
        try:
            yield slot.number
        finally:
            slot.users -= 1
            self._released.set()

    async def _load_adapter(self, name: str, source: AdapterSource) -> _UsedSlot:
        directory = source.path
        try:
            adapter = await asyncio.to_thread(open_adapter, name, source, self._limits.root, _DIRECTORY_SETTING)
            directory = str(adapter.directory)
            self._check_rank(adapter)
            number = await self._free_number()
            await self._load(number, adapter, source.sha256)
        except BadRequest as error:  # do not disclose paths of the machine
            raise BadRequest(f"the adapter {name!r}: {error.message.replace(directory, source.path)}") from error
        slot = self._used[source.sha256] = _UsedSlot(number)
        return slot

    def _check_rank(self, adapter: LoraAdapter) -> None:
        if adapter.rank > self._limits.rank:
            raise BadRequest(
                f"it has rank {adapter.rank}, and executors load up to {self._limits.rank}: set {_RANK_SETTING}"
            )

    async def _free_number(self) -> int:
        """Return a number that no request uses, after evicting its adapter."""
        while len(self._used) >= self._limits.slots:
            idle = next((digest for digest, slot in self._used.items() if not slot.users), None)
            if idle is not None:
                del self._used[idle]
            else:
                self._released.clear()
                await self._released.wait()
        used_numbers = {used_slot.number for used_slot in self._used.values()}
        return next(number for number in self._numbers if number not in used_numbers)


@dataclass(frozen=True)
class ThinkSettings:
    """Limits of one language model.

    ``slots`` is the number of sequences in one decode step. ``context`` is the longest sequence in tokens, including
    the prompt; 0 means the model's own. ``share`` is the most prompt tokens between two decode steps, and ``goals``
    replace it. ``threads`` are torch's in the compute thread. With ``beside``, an encoder shares the loop. If
    ``decodes`` is False, answers are not decoded here, and slots take no memory. ``graphs``: see ``Steps``. With
    ``int8``, weights are 8-bit integers. ``kept_bytes`` is the memory for prompts of conversations that are kept for
    their next turns; 0 keeps none.
    ``adapters`` are directories of LoRA adapters by name, and ``loadable`` limits others that requests may bring.
    """

    slots: int = 16
    context: int = 0
    share: int = 512
    threads: int = 1
    goals: StepGoals = NO_GOALS
    beside: bool = False
    decodes: bool = True
    graphs: bool = True
    int8: bool = False
    kept_bytes: int = 0
    adapters: Mapping[str, Path] = field(default_factory=dict)
    loadable: AdapterLimits = NO_ADAPTERS


class PausedSequence(NamedTuple):
    """A prefilled sequence that waits in its slot until it is ``taken``."""

    number: int
    invocation: str
    sequence: Thinking
    taken: asyncio.Event


class ThinkerCore(HostedDecoder[Thinker, Thinking]):
    """The model, its compute thread and its engine. Each user calls ``load`` and ``close`` once."""

    def __init__(self, family: str, checkpoint: Path, device: str, dtype: str, settings: ThinkSettings) -> None:
        limits = EngineLimits(settings.slots, settings.context, settings.share, settings.goals)
        limits = limits._replace(decodes=settings.decodes, graphs=settings.graphs, int8=settings.int8)
        source = ComponentSource("thinker", family, checkpoint, device, dtype)
        super().__init__(source, settings.threads, limits, ThinkFeed, beside=settings.beside)
        self._adapters, self._loadable = settings.adapters, settings.loadable
        self._adapter_slots = AdapterSlots(settings.loadable, len(settings.adapters), self._load_adapter)
        # Tokenizing must not wait for a step, and a tokenizer is not safe for two threads at once.
        self._words = ThreadPoolExecutor(1, "words")
        self._users = 0
        #: True after its last user has closed it: it cannot be loaded again.
        self.closed = False
        self._numbers = count()
        self._paused: dict[int, PausedSequence] = {}
        self._grammars: Grammars | None = None
        #: Calls that start with the same prompt.
        self.prompts = PromptGroups()
        self._kept = KeptPrompts(settings.kept_bytes)
        #: Recommendations of the checkpoint's authors, see ``omnibus.checkpoints.generation_config``.
        self.sampling = read_sampling(checkpoint)

    async def load(self) -> None:
        self._users += 1
        if self._serving is None:
            await super().load()

    async def close(self) -> None:
        self._users -= 1
        if self._users <= 0:
            self.closed = True
            await super().close()

    async def _set_up(self) -> None:
        if isinstance(self.thinker, OwnThinker):
            await self._compute(admit_thinker, self.thinker)
        elif isinstance(self.thinker, OwnDecoder):
            await self._compute(admit_decoder, self.thinker)
        if self._adapters or self._loadable.root:
            await self._compute(attach_adapters, self.thinker, self._adapters, self._loadable.slots)
        await super()._set_up()
        self._grammars = Grammars(self.thinker.tokenizer, self.thinker.vocabulary, sorted(self.thinker.eos))

    async def open_grammar(self, grammar: str | None) -> GrammarState | None:
        """Return the state of a Lark ``grammar`` before an answer's first token. Raises ``BadRequest``."""
        if grammar is None:
            return None
        assert self._grammars is not None  # noqa: S101 - for the type checker
        return await self._grammars.open(grammar)

    async def _tear_down(self) -> None:
        if self._grammars is not None:
            self._grammars.close()
        await asyncio.to_thread(self._words.shutdown, cancel_futures=True)

    def stats(self) -> dict[str, Any]:
        adapter_stats = {"loaded_adapters": len(self._adapter_slots)} if self._loadable.root else {}
        prompt_stats = {"kept_prompts": len(self._kept), "kept_bytes": self._kept.nbytes}
        reuse_stats = {"reused_tokens": self._kept.reused_tokens}
        return {
            **super().stats(),
            "budget": self.schedule.describe_budget(),
            **adapter_stats,
            **prompt_stats,
            **reuse_stats,
        }

    @property
    def thinker(self) -> Thinker:
        return self.model

    @property
    def keeps_prompts(self) -> bool:
        """True if prompts of conversations are kept for their next turns."""
        return self._kept.limit_bytes > 0

    @asynccontextmanager
    async def use_adapter(self, params: TextGenerationParams) -> AsyncIterator[int | None]:
        """Yield the number of the adapter in ``params``; None without one.

        The adapter stays in memory until the block ends. Raises ``NotFound``, and as ``AdapterSlots.use`` for an
        adapter that the request brings.
        """
        if params.adapter_source is None:
            yield self._declared_number(params.adapter)
            return
        async with self._adapter_slots.use(params.adapter, params.adapter_source) as number:
            yield number

    def _declared_number(self, name: str) -> int | None:
        if not name:
            return None
        adapters = self.thinker.adapters
        if adapters is None or name not in adapters.numbers:
            raise unknown_adapter_error(name)
        return adapters.numbers[name]

    async def _load_adapter(self, number: int, adapter: LoraAdapter, _: str) -> None:
        await self._compute(replace_adapter, self.thinker, number, adapter)

    # The loop, for an encoder that shares it

    @property
    def schedule(self) -> Schedule[Any]:
        return self.engine.schedule

    def raise_if_failed(self) -> None:
        self.engine.raise_if_failed()

    def wake(self) -> None:
        self.engine.wake()

    # Prompts

    async def tokenize_prompt(self, messages: list[dict[str, Any]], params: TextGenerationParams) -> TokenizedPrompt:
        """Tokenize. Raises ``BadRequest``, and ``ContextTooLong`` before a long text delays other requests."""
        options = params.prompt_options
        if params.drop_history:
            tokenize = partial(self.thinker.prompt, context=self.context, options=options)
            longest = self.context - (params.max_tokens or 1)
            return await run_in_pool(self._words, fit_history, tokenize, messages, longest)
        if params.truncate_prompt_tokens is None:
            return await run_in_pool(self._words, self.thinker.prompt, messages, self.context, options)
        longest = self.context * MAX_TRUNCATED_CONTEXTS
        whole = await run_in_pool(self._words, self.thinker.prompt, messages, longest, options)
        return truncate_prompt(whole, params, self.context)

    async def tokenize_script(self, params: TextGenerationParams, length: int) -> tuple[int, ...]:
        """Return the tokens of a given answer, including the end token.

        Empty if the model chooses the answer. ``length`` is the prompt's. Raises ``BadRequest`` for a text that has no
        tokens, and ``ContextTooLong``.
        """
        if params.say is None:
            return ()
        left = self.answer_limit(length, None)
        try:
            words = await run_in_pool(self._words, self.thinker.encode_text, params.say, False, left)
        except ContextTooLong as error:
            raise ContextTooLong(error.message, param="say") from None
        script = (*words, min(self.thinker.eos))
        if len(script) > left:
            raise ContextTooLong(
                f"`say` has {len(script)} tokens, but the model's context leaves {left}; send a shorter text",
                param="say",
            )
        return script

    async def ban_words(self, params: TextGenerationParams) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of ``bad_words``. Raises ``BadRequest``."""
        if not params.bad_words:
            return ()
        return await run_in_pool(self._words, ban_words, self.thinker.tokenizer, params.bad_words)

    async def assemble_prefill(self, prompt: TokenizedPrompt, items: Rows[Item]) -> tuple[PrefillInputs, np.ndarray]:
        """Return a prompt's ``PrefillInputs``, and its layout for a talker.

        The layout is int32 [k, S]. Raises ``BadRequest``.
        """
        return await self._compute(self._assemble_prefill, prompt, items)

    def _assemble_prefill(self, prompt: TokenizedPrompt, items: Rows[Item]) -> tuple[PrefillInputs, np.ndarray]:
        arrays = [_embedding(item) for item in items]
        rows = copy_to_device(arrays, torch.device(self.thinker.device), self.thinker.dtype)
        media = [Encoded(embeds, item.data) for embeds, item in zip(rows, items, strict=True)]
        prefill = self.thinker.assemble_prefill(prompt, media)
        return prefill, prefill.layout.cpu().numpy()

    async def use_kept_prompt(self, sequence: Thinking, cache_key: str) -> int:
        """Start ``sequence`` after its conversation's kept prompt, and keep its own.

        Returns the number of tokens that need not be computed.
        """
        if not cache_key or self.thinker.recurrent or not self.thinker.batches:
            return 0  # a state cannot be cut back to the tokens that two prompts share
        sequence.cache_key = cache_key
        sequence.on_prefilled = partial(self._kept.keep, sequence)
        return await self._compute(self._kept.reuse, sequence) if cache_key in self._kept else 0

    async def resume_after(self, sequence: Thinking, tokens: Rows[int]) -> None:
        """Start ``sequence`` after ``tokens`` of its answer, which are prefilled at once.

        A prompt with cross-attention is answered from its start: the rows it attends to have their own positions.
        """
        aside = sequence.attention is not None and sequence.attention.answer_rows is not None
        if tokens and not aside and len(tokens) < sequence.limit:
            sequence.begin_after(tokens, await self._compute(self._embed_tokens, tokens))

    def _embed_tokens(self, tokens: Rows[int]) -> Tensor:
        return self.thinker.embed(torch.tensor(tokens, device=self.thinker.device))

    async def compute_rows(self, sequence: Thinking, tokens: Rows[int], text: str) -> list[np.ndarray]:
        """Return the rows [H] of ``text`` after ``tokens`` of an answer.

        ``sequence`` is that of the answer, and must have kept its slot.
        """
        length = sequence.prompt + len(tokens)
        ids = await run_in_pool(self._words, self.thinker.encode_text, text)
        ids = ids[: self.context - length]
        rows: list[np.ndarray | None] = []
        if ids and await self.engine.replay_tokens(sequence, length, ids):
            while len(rows) < len(ids):
                rows += [step.side for step in await sequence.inbox.take_steps()]
        return [row for row in rows if row is not None]

    def answer_limit(self, length: int, requested_tokens: int | None, usual: int | None = None) -> int:
        """See ``max_answer_tokens``."""
        return max_answer_tokens(self.context, length, requested_tokens, usual)

    # From a prefill to a decode in this process, without moving anything

    @contextmanager
    def hold_paused(self, invocation: str, sequence: Thinking) -> Iterator[PausedSequence]:
        """Keep ``sequence`` until the block ends, for its decode.

        The decode must name its number and be of the same ``invocation``.
        """
        number = next(self._numbers)
        paused_sequence = self._paused[number] = PausedSequence(number, invocation, sequence, asyncio.Event())
        try:
            yield paused_sequence
        finally:
            self._paused.pop(number, None)

    def resume_paused(self, invocation: str, number: int) -> Thinking:
        """Return the kept sequence, which the caller must adopt at once. Raises ``StageUnavailable``."""
        paused_sequence = self._paused.get(number)
        if paused_sequence is None or paused_sequence.invocation != invocation:
            raise StageUnavailable("the prefill of this answer is gone; send the request again")
        paused_sequence.taken.set()
        return paused_sequence.sequence


def _embedding(item: Item) -> np.ndarray:
    if item.array is None or item.array.ndim != 2:
        raise BadRequest("a media item has no embedding of shape [tokens, width]", param="items")
    return item.array
