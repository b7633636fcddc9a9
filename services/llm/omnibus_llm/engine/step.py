"""The arithmetic of an engine: prompts, slots and decode steps. Everything here runs in the compute thread."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Rows
from contextlib import AbstractContextManager, nullcontext
from math import isnan
from time import perf_counter
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from omnibus.bus.messages import BatchCounts
from omnibus.errors import Fatal
from omnibus_llm.engine.cross_attention_cache import CrossCache, PairedCache, PairedPass
from omnibus_llm.engine.decode_pass import DecodePass, FixedPass, PromptPass, RecordedPass, record_cuda_graphs
from omnibus_llm.engine.sampler import choose_tokens
from omnibus_llm.engine.separate_caches import NativeSlots, SeparateCaches
from omnibus_llm.engine.sequence import DecoderSequence, FilledPrompt, StepOutcome, TokenStep
from omnibus_llm.engine.slot_cache import SlotCache
from omnibus_llm.engine.state_cache import StateCache
from omnibus_models.adapters import Adapters
from omnibus_models.contract import Decoder
from omnibus_models.llama_cpp_thinker import LlamaCppThinker
from omnibus_models.recorded_calls import has_windows

S = TypeVar("S", bound=DecoderSequence)
S_in = TypeVar("S_in", bound=DecoderSequence, contravariant=True)

_REPEAT_COUNT = 2  # take the faster of two: disturbances only make a measurement longer


class Feed(Protocol[S_in]):
    """Inputs of a step, and the data that goes with each token; differs between thinker and talker."""

    #: Whether every sequence is ready after each of its steps.
    always_ready: bool

    def is_ready(self, sequence: S_in) -> bool:
        """Return True if ``sequence`` can take the next step now. Called on the event loop."""

    def build_inputs(self, batch: Rows[S_in]) -> Tensor:
        """Return the inputs of the next step, [B, H]. May be called again for the same step."""

    def observe_prefill(self, sequence: S_in, hidden: Tensor) -> None:
        """Process ``hidden`` [t, H'] of the next share of the prompt."""

    def first_side(self, sequence: S_in) -> np.ndarray | None:
        """Return the side data of the first token."""

    def step_sides(self, batch: Rows[S_in], inputs: Tensor, hidden: Tensor) -> list[np.ndarray | None]:
        """Return the side data of each row's next token. May be called again for the same step."""

    def token_sides(
        self, batch: Rows[S_in], hidden: Tensor, tokens: list[int], sides: list[np.ndarray | None]
    ) -> list[np.ndarray | None]:
        """Return the data for ``tokens``, which were chosen from ``hidden`` [B, H']: ``sides`` or other data."""


class Steps(Generic[S]):
    """Up to ``slots`` sequences of up to ``context`` positions on one decoder.

    With ``graphs`` the layers of a decode step are recorded: as CUDA graphs on a GPU, see ``RecordedPass`` on a CPU.
    """

    def __init__(self, decoder: Decoder, feed: Feed[S], slots: int, context: int, *, graphs: bool = True) -> None:
        self._decoder = decoder
        self._feed = feed
        self._adapters: Adapters | None = getattr(decoder, "adapters", None)
        self._cache, self._pass = _choose_cache(decoder, slots, context, graphs)
        self._adapted_pass = self._pass if isinstance(self._cache, SeparateCaches) else DecodePass(decoder, self._cache)
        #: Of prompts' first tokens, if decode steps are recorded on a CPU as well.
        self._prompt_pass = PromptPass(decoder) if isinstance(self._pass, RecordedPass) else None
        #: Whether a prompt can be computed in several passes.
        self.splits_prompts = bool(getattr(decoder, "splits_prompts", True))
        self.active: list[S] = []  # the sequence in slot i is number i
        self.batches: Counter[int] = Counter()
        self.copied_prompts = 0
        #: Work so far; a new object with each batch, because another thread reads it.
        self.counts = BatchCounts()

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of keys and values of one token; 0 before slots have memory."""
        return self._cache.token_bytes

    def warm_up(self, decodes: bool) -> None:
        """Pay the one-time costs of first passes; allocates all slots if ``decodes``."""
        prompt_cache = self._prefill_dummy(1)
        if decodes:
            self._cache.lengths[self._cache.insert(self._cache.filled_layers(prompt_cache, None))] = 1
            self._decode_dummy([0])
            self._cache.remove(0)

    def decode_seconds(self, count: int, length: int) -> float:
        """Measure the seconds of a step of ``count`` sequences of ``length`` positions.

        All slots must be free.
        """
        slots = self._cache.occupy_slots(count, length)
        seconds = min(self._measure_seconds(self._decode_dummy, slots) for _ in range(_REPEAT_COUNT))
        self._cache.occupy_slots(0, 0)
        return seconds

    def prefill_seconds(self, tokens: int) -> float:
        """Measure the seconds of a prefill of ``tokens`` tokens from the start."""
        return min(self._measure_seconds(self._prefill_dummy, tokens) for _ in range(_REPEAT_COUNT))

    def _measure_seconds(self, function: object, argument: object) -> float:
        begin = perf_counter()
        function(argument)  # type: ignore[operator]
        if self._decoder.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.device)
        return perf_counter() - begin

    def _prefill_dummy(self, tokens: int) -> Cache:
        decoder, prompt_cache = self._decoder, self._new_cache()
        inputs = decoder.embed(torch.zeros(tokens, dtype=torch.long, device=decoder.device))
        positions = torch.arange(tokens, device=decoder.device)[None, None].expand(decoder.axes, 1, tokens)
        decoder.logits(decoder.forward(inputs[None], positions, prompt_cache, None)[:, -1])
        return prompt_cache

    def _decode_dummy(self, slots: list[int]) -> None:
        decoder = self._decoder
        inputs = decoder.embed(torch.zeros(len(slots), dtype=torch.long, device=decoder.device))
        decoder.logits(self._pass.run(slots, inputs, [self._cache.lengths[slot] for slot in slots]))

    def _new_cache(self) -> Cache:
        """Return a cache of one sequence: of all positions in all layers, or what the model itself keeps."""
        has_own = isinstance(self._cache, StateCache | SeparateCaches | PairedCache)
        return self._decoder.new_cache() if has_own else DynamicCache()

    # Slots

    def evict(self) -> None:
        """Free the slots of all sequences that are gone."""
        for slot in reversed(range(len(self.active))):
            if self.active[slot].gone:
                self._cache.remove(slot, wipe=self.active[slot].broken)
                self.active[slot] = self.active[-1]
                self.active.pop()

    def replay_tokens(self, sequence: S, length: int, tokens: Rows[int]) -> None:
        """See ``BatchingEngine.replay_tokens``; called between two steps."""
        self._cache.lengths[self.active.index(sequence)] = length
        sequence.follow_script(tokens)

    def insert_sequences(self, sequences: Rows[S]) -> list[tuple[S, Exception | None]]:
        """Copy caches from other executors into slots; returns the errors of those that do not fit."""
        return [(sequence, self._insert_sequence(sequence)) for sequence in sequences]

    def _insert_sequence(self, sequence: S) -> Exception | None:
        try:
            about, array = sequence.came
            layers = self._cache.unpack(about, array, sequence.length)
            # Until its owner confirms that the source memory was valid to the end, the slot may contain anything.
            sequence.broken = True
            self._cache.insert(layers)
            self.active.append(sequence)
        except Exception as error:  # noqa: BLE001 - one request's boundary: its error must not stop others
            return error
        return None

    # Prompts

    def prefill(self, shares: Rows[tuple[S, int]]) -> list[StepOutcome]:
        """Compute the next tokens of each prompt; those that are complete get their first token."""
        outcomes = []
        for sequence, size in shares:
            result: TokenStep | Exception | None
            if sequence.gone:
                continue
            try:
                result = self._extend_prefill(sequence, size)
            except Exception as error:  # noqa: BLE001 - one request's boundary: its error must not stop others
                result = error
            if result is not None:
                outcomes.append(StepOutcome(sequence, result))
        return outcomes

    def _extend_prefill(self, sequence: S, size: int) -> TokenStep | None:
        member = sequence.member
        if member is not None and member.filled is not None:
            return self._copy_prefill(sequence, member.filled)
        start, end = sequence.done, sequence.done + size
        inputs, positions = sequence.inputs[None, start:end], sequence.positions[:, None, start:end]
        mask = None if sequence.attention is None else sequence.attention.mask(start, end)
        with self._chosen_adapters([sequence]) as has_adapters:
            if start == 0 and mask is None and not has_adapters and self._prompt_pass is not None:
                hidden, sequence.cache = self._prompt_pass.run(inputs, positions)
            else:
                if start == 0:
                    sequence.cache = self._new_cache()
                hidden = self._decoder.forward(inputs, positions, sequence.cache, mask)
        self._count_batch(passes=1, tokens=size)
        self._feed.observe_prefill(sequence, hidden[0])
        sequence.done = end
        if not sequence.is_prefilled:
            return None
        if member is not None:
            member.offer_prompt(sequence.cache, hidden[:, -1])
        return self._first_step(sequence, hidden[:, -1])

    def _copy_prefill(self, sequence: S, filled_prompt: FilledPrompt) -> TokenStep:
        """Take the prompt that another sequence has computed."""
        sequence.cache, sequence.done = filled_prompt.cache, sequence.length
        self.copied_prompts += 1
        return self._first_step(sequence, filled_prompt.hidden)

    def _first_step(self, sequence: S, hidden: Tensor) -> TokenStep:
        logits = self._decoder.logits(hidden)
        _check_logits(logits)
        if sequence.on_prefilled is not None:
            sequence.on_prefilled()
        side = self._feed.first_side(sequence)
        [token] = choose_tokens(logits, [sequence.picker])
        [side] = self._feed.token_sides([sequence], hidden, [token], [side])
        finish = sequence.accept_token(token)
        if finish is None:
            self._store_cache(sequence)
        sequence.release_prefill()
        return TokenStep(token, finish, side, sequence.picker.logprobs)

    def _store_cache(self, sequence: S) -> None:
        layers = self._cache.filled_layers(sequence.cache, sequence.attention)
        if sequence.stays:
            self._cache.lengths[self._cache.insert(layers)] = sequence.length
            self.active.append(sequence)
        else:
            sequence.goes = self._cache.pack(layers)

    # Tokens

    def decode(self, batch: Rows[S]) -> list[StepOutcome]:
        """Compute one token for each sequence of ``batch``."""
        chosen_sequences = set(batch)
        return self._decode_slots([slot for slot, sequence in enumerate(self.active) if sequence in chosen_sequences])

    def decode_while(
        self, batch: Rows[S], goes_on: Callable[[], bool], deliver: Callable[[list[StepOutcome]], None]
    ) -> list[StepOutcome]:
        """Compute tokens for each sequence of ``batch`` while ``goes_on`` is true and none has ended.

        Returns the outcomes of the last step; ``deliver`` gets those before.
        """
        outcomes = self.decode(batch)
        while all(isinstance(result, TokenStep) and result.finish is None for _, result in outcomes) and goes_on():
            deliver(outcomes)
            outcomes = self.decode(batch)
        return outcomes

    def _decode_slots(self, slots: list[int]) -> list[StepOutcome]:
        try:
            return self._decode_step(slots)
        except Exception as error:  # noqa: BLE001 - find the row at fault, and let the others continue
            if len(slots) == 1:
                return [StepOutcome(self.active[slots[0]], error)]
            return [outcome for slot in slots for outcome in self._decode_slots([slot])]

    def _decode_step(self, slots: list[int]) -> list[StepOutcome]:
        batch = [self.active[slot] for slot in slots]
        inputs = self._feed.build_inputs(batch)
        positions = [self._cache.lengths[slot] + self.active[slot].delta for slot in slots]
        hidden = self._run_pass(batch, slots, inputs, positions)
        logits = self._decoder.logits(hidden)
        _check_logits(logits)
        sides = self._feed.step_sides(batch, inputs, hidden)
        tokens = choose_tokens(logits, [sequence.picker for sequence in batch])
        sides = self._feed.token_sides(batch, hidden, tokens, sides)
        self._cache.advance_slots(slots)
        self.batches[len(slots)] += 1
        self._count_batch(steps=1, rows=len(slots))
        return [
            StepOutcome(sequence, TokenStep(token, sequence.accept_token(token), side, sequence.picker.logprobs))
            for sequence, token, side in zip(batch, tokens, sides, strict=True)
        ]

    def _count_batch(self, passes: int = 0, tokens: int = 0, steps: int = 0, rows: int = 0) -> None:
        old_counts = self.counts
        self.counts = BatchCounts(
            old_counts.passes + passes, old_counts.tokens + tokens, old_counts.steps + steps, old_counts.rows + rows
        )

    def _run_pass(self, batch: Rows[S], slots: list[int], inputs: Tensor, positions: list[int]) -> Tensor:
        """Run the pass of a decode step. Passes with adapters are not recorded: the adapted rows differ from step to
        step.
        """
        with self._chosen_adapters(batch) as has_adapters:
            return (self._adapted_pass if has_adapters else self._pass).run(slots, inputs, positions)

    def _chosen_adapters(self, batch: Rows[S]) -> AbstractContextManager[bool]:
        """Apply to each row of a pass the adapter of its sequence; yields True if any has one."""
        if self._adapters is None:
            return nullcontext(False)
        return self._adapters.chosen([sequence.adapter for sequence in batch])


def _choose_cache(
    decoder: Decoder, slots: int, context: int, records: bool
) -> tuple[SlotCache | SeparateCaches, DecodePass | SeparateCaches]:
    """Return the cache of sequences in slots, and the pass of decode steps. ``records``: recorded if possible."""
    if isinstance(decoder, LlamaCppThinker):
        native_slots = NativeSlots(decoder, slots, context)
        return native_slots, native_slots
    if not getattr(decoder, "batches", True):
        separate_caches = SeparateCaches(decoder, slots, context)
        return separate_caches, separate_caches
    if getattr(decoder, "pairs", False):
        paired_cache = PairedCache(slots, context, decoder.layers)
        return paired_cache, PairedPass(decoder, paired_cache)
    cross_layers = getattr(decoder, "crossed", ())
    if cross_layers:
        cross_cache = CrossCache(slots, context, decoder.layers, cross_layers)
        return cross_cache, DecodePass(decoder, cross_cache)
    if getattr(decoder, "recurrent", False):
        state_cache = StateCache(slots, context)
        return state_cache, DecodePass(decoder, state_cache)
    cache = SlotCache(slots, context)
    return cache, _choose_pass(decoder, cache) if records else DecodePass(decoder, cache)


def _choose_pass(decoder: Decoder, cache: SlotCache) -> DecodePass:
    if decoder.device.type == "cuda":
        return FixedPass(decoder, cache, record_cuda_graphs())
    return DecodePass(decoder, cache) if has_windows(decoder.module) else RecordedPass(decoder, cache)


def _check_logits(logits: Tensor) -> None:
    # NumPy's maximum takes a tenth of the time of torch's, and that a tenth of isnan().any().
    largest = logits.numpy().max() if logits.device.type == "cpu" else logits.amax()
    if isnan(largest):
        raise Fatal("the model computed values that are not numbers for this request; check its media and weights")
