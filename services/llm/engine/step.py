"""The arithmetic of an engine: prompts, slots and decode steps. Everything here runs in the compute thread."""

from collections import Counter
from collections.abc import Sequence as Rows
from time import perf_counter
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus.errors import Fatal
from omnibus_models.contract import Decoder
from services.llm.engine.cross_attention_cache import CrossCache
from services.llm.engine.sampler import choose
from services.llm.engine.sequence import Outcome, Sequence, Step
from services.llm.engine.slot_cache import SlotCache

S = TypeVar("S", bound=Sequence)
S_in = TypeVar("S_in", bound=Sequence, contravariant=True)

_REPEATS = 2  # the quicker of two: what disturbs a measurement makes it longer


class Feed(Protocol[S_in]):
    """Inputs of a step, and the data that goes with each token; differs between thinker and talker."""

    def ready(self, sequence: S_in) -> bool:
        """Return whether ``sequence`` can take the next step now. Asked on the event loop."""

    def inputs(self, batch: Rows[S_in]) -> Tensor:
        """Inputs of the next step, [B, H]. May be called again for the same step."""

    def prefilled(self, sequence: S_in, hidden: Tensor) -> None:
        """See ``hidden`` [t, H'] of the next share of the prompt."""

    def begun(self, sequence: S_in) -> np.ndarray | None:
        """Return the data that goes with the first token."""

    def stepped(self, batch: Rows[S_in], inputs: Tensor, hidden: Tensor) -> list[np.ndarray | None]:
        """Return the data that goes with each row's next token. May be called again for the same step."""

    def chosen(
        self, batch: Rows[S_in], hidden: Tensor, tokens: list[int], sides: list[np.ndarray | None]
    ) -> list[np.ndarray | None]:
        """Return the data for ``tokens``, which were chosen from ``hidden`` [B, H']: ``sides`` or other data."""


class Steps(Generic[S]):
    """Up to ``slots`` sequences of up to ``context`` positions on one decoder."""

    def __init__(self, decoder: Decoder, feed: Feed[S], slots: int, context: int) -> None:
        self._decoder = decoder
        self._feed = feed
        crossed = getattr(decoder, "crossed", ())
        self._cache = CrossCache(slots, context, decoder.layers, crossed) if crossed else SlotCache(slots, context)
        self.active: list[S] = []  # the sequence in slot i is number i
        self.batches: Counter[int] = Counter()

    def warm(self, decodes: bool) -> None:
        """Pay for whatever the first passes cost, and take the memory of all slots if anything ``decodes`` here."""
        filled = self._filled(1)
        if decodes:
            self._cache.insert(self._cache.filled(filled, None))
            self._pass([0])
            self._cache.remove(0)

    def decode_seconds(self, length: int) -> float:
        """Measure the seconds of a step of all slots, each with ``length`` positions. Only while all are free."""
        slots = self._cache.pretend(length)
        seconds = min(self._timed(self._pass, slots) for _ in range(_REPEATS))
        self._cache.pretend(0)
        return seconds

    def prefill_seconds(self, tokens: int) -> float:
        """Measure the seconds that a prefill of the first ``tokens`` tokens of a prompt takes."""
        return min(self._timed(self._filled, tokens) for _ in range(_REPEATS))

    def _timed(self, function: object, argument: object) -> float:
        begin = perf_counter()
        function(argument)  # type: ignore[operator]
        if self._decoder.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.device)
        return perf_counter() - begin

    def _filled(self, tokens: int) -> DynamicCache:
        decoder, filled = self._decoder, DynamicCache()
        inputs = decoder.embed(torch.zeros(tokens, dtype=torch.long, device=decoder.device))
        positions = torch.arange(tokens, device=decoder.device)[None, None].expand(decoder.axes, 1, tokens)
        decoder.logits(decoder.forward(inputs[None], positions, filled, None)[:, -1])
        return filled

    def _pass(self, slots: list[int]) -> None:
        decoder = self._decoder
        inputs = decoder.embed(torch.zeros(len(slots), dtype=torch.long, device=decoder.device))
        self._cache.begin(slots)
        positions = self._places([self._cache.lengths[slot] for slot in slots])
        decoder.logits(decoder.forward(inputs[:, None], positions, self._cache, self._cache.mask())[:, -1])

    # Slots

    def evict(self) -> None:
        """Free the slots of all sequences that are gone."""
        for slot in reversed(range(len(self.active))):
            if self.active[slot].gone:
                self._cache.remove(slot, wipe=self.active[slot].broken)
                self.active[slot] = self.active[-1]
                self.active.pop()

    def insert(self, sequences: Rows[S]) -> list[tuple[S, Exception | None]]:
        """Copy the caches that came from elsewhere into slots; says which of them do not fit."""
        return [(sequence, self._insert(sequence)) for sequence in sequences]

    def _insert(self, sequence: S) -> Exception | None:
        try:
            about, packed = sequence.came
            filled = self._cache.unpack(about, packed, sequence.length)
            # Until its owner says that the memory it came from was there to the end, it may hold anything.
            sequence.broken = True
            self._cache.insert(filled)
            self.active.append(sequence)
        except Exception as error:  # noqa: BLE001 - one request's boundary: whatever it breaks, the others go on
            return error
        return None

    # Prompts

    def prefill(self, shares: Rows[tuple[S, int]]) -> list[Outcome]:
        """Compute the next tokens of each prompt; those that are complete get their first token."""
        outcomes = []
        for sequence, size in shares:
            result: Step | Exception | None
            if sequence.gone:
                continue
            try:
                result = self._extend(sequence, size)
            except Exception as error:  # noqa: BLE001 - one request's boundary: whatever it breaks, the others go on
                result = error
            if result is not None:
                outcomes.append(Outcome(sequence, result))
        return outcomes

    def _extend(self, sequence: S, size: int) -> Step | None:
        start, end = sequence.done, sequence.done + size
        inputs, positions = sequence.inputs[None, start:end], sequence.positions[:, None, start:end]
        mask = None if sequence.attention is None else sequence.attention.mask(start, end)
        hidden = self._decoder.forward(inputs, positions, sequence.cache, mask)
        self._feed.prefilled(sequence, hidden[0])
        sequence.done = end
        return self._begin(sequence, hidden[:, -1]) if sequence.prefilled else None

    def _begin(self, sequence: S, hidden: Tensor) -> Step:
        logits = self._decoder.logits(hidden)
        _check(logits)
        side = self._feed.begun(sequence)
        [token] = choose(logits, [sequence.picker])
        [side] = self._feed.chosen([sequence], hidden, [token], [side])
        finish = sequence.accept(token)
        if finish is None:
            self._keep(sequence)
        sequence.release()
        return Step(token, finish, side)

    def _keep(self, sequence: S) -> None:
        filled = self._cache.filled(sequence.cache, sequence.attention)
        if sequence.stays:
            self._cache.insert(filled)
            self.active.append(sequence)
        else:
            sequence.goes = self._cache.pack(filled)

    # Tokens

    def decode(self, batch: Rows[S]) -> list[Outcome]:
        """One token for each sequence of ``batch``."""
        chosen = set(batch)
        return self._decode([slot for slot, sequence in enumerate(self.active) if sequence in chosen])

    def _decode(self, slots: list[int]) -> list[Outcome]:
        try:
            return self._step(slots)
        except Exception as error:  # noqa: BLE001 - one of these rows is guilty: find it, and let the others go on
            if len(slots) == 1:
                return [Outcome(self.active[slots[0]], error)]
            return [outcome for slot in slots for outcome in self._decode([slot])]

    def _step(self, slots: list[int]) -> list[Outcome]:
        batch = [self.active[slot] for slot in slots]
        inputs = self._feed.inputs(batch)
        self._cache.begin(slots)
        positions = self._places([self._cache.lengths[slot] + self.active[slot].delta for slot in slots])
        hidden = self._decoder.forward(inputs[:, None], positions, self._cache, self._cache.mask())[:, -1]
        logits = self._decoder.logits(hidden)
        _check(logits)
        sides = self._feed.stepped(batch, inputs, hidden)
        tokens = choose(logits, [sequence.picker for sequence in batch])
        sides = self._feed.chosen(batch, hidden, tokens, sides)
        self._cache.advance(slots)
        self.batches[len(slots)] += 1
        return [
            Outcome(sequence, Step(token, sequence.accept(token), side))
            for sequence, token, side in zip(batch, tokens, sides, strict=True)
        ]

    def _places(self, rows: list[int]) -> Tensor:
        positions = torch.tensor(rows, device=self._decoder.device)
        return positions[None, :, None].expand(self._decoder.axes, -1, 1)


def _check(logits: Tensor) -> None:
    if bool(torch.isnan(logits).any()):
        raise Fatal("the model computed values that are not numbers for this request; check its media and weights")
