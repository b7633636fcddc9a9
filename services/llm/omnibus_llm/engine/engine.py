"""Continuous batching: sequences join and leave a running batch between two steps.

One turn of the engine runs one step of its schedule. A step contains a token for every sequence that is ready, shares
of prompts, and media items of an encoder that shares the loop. The arithmetic of a turn runs in compute threads.
Everything else (joining, leaving and delivery) runs on the event loop between two calls, so nothing here needs a lock.
Method: Orca (Yu et al. 2022, iteration-level scheduling), prefill in shares as in Sarathi-Serve (Agrawal et al. 2024),
stages in one step as in TriInfer.

A decoder with the engine that serves it: the common base of language models and talkers.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from omnibus.bus.messages import BatchCounts
from omnibus.executor.job_clock import Share, Stopwatch, charge_jobs, current_clock
from omnibus.executor.scheduler import Schedule, StepBudget, StepPlan
from omnibus.executor.step_budget import NO_GOALS, BudgetSizes, StepCosts, StepGoals, find_budget, measure_costs
from omnibus.spare_places import count_spare_places
from omnibus_engines.component import ComponentSource, Compute, Hosted, by_size, engine_closed_error
from omnibus_llm.engine.sequence import DecoderSequence, Packed, StepOutcome, TokenStep
from omnibus_llm.engine.step import Feed, Steps
from omnibus_models.contract import Decoder
from omnibus_models.int8_weights import quantise_weights
from omnibus_models.packed_weights import pack_weights

S = TypeVar("S", bound=DecoderSequence)

_MIN_STEP_TOKENS = 16  # prompt tokens in a step, however tight the goals: fewer cost nearly as much
_CALL_SECONDS = 0.1  # of decode steps without a turn of the loop, after which the jobs are charged
_TYPICAL_CONTEXT_TOKENS = 1024  # positions of a sequence whose decode step is measured


class EngineLimits(NamedTuple):
    """Limits of an engine.

    ``slots`` is the number of sequences in a step, in addition to spare ones for tenants without one. ``context`` is
    the positions of a sequence. ``share`` is the prompt tokens in a step without goals. ``goals`` determine the budgets
    of steps. ``decodes`` False allocates no memory for slots. ``graphs`` allows decode steps to be CUDA graphs on a
    GPU. ``int8``: weights are 8-bit integers.
    """

    slots: int
    context: int
    share: int
    goals: StepGoals = NO_GOALS
    decodes: bool = True
    graphs: bool = True
    int8: bool = False


class _Replay(NamedTuple, Generic[S]):
    """Tokens that ``sequence`` takes after its first ``length`` positions."""

    sequence: S
    length: int
    tokens: Rows[int]


class BatchingEngine(Generic[S]):
    """Runs sequences on one decoder. ``compute`` runs a function in the compute thread.

    With ``parallel``, media items are encoded during the language model's step, not after it.
    """

    def __init__(
        self, decoder: Decoder, feed: Feed[S], compute: Compute, limits: EngineLimits, *, parallel: bool = False
    ) -> None:
        self._feed = feed
        self._compute = compute
        self._parallel = parallel
        spare = count_spare_places(limits.slots)
        self._steps = Steps(decoder, feed, limits.slots + spare, limits.context, graphs=limits.graphs)
        self._arrived: list[S] = []
        self._replays: list[_Replay[S]] = []
        self._wake = asyncio.Event()
        self._failed: Exception | None = None
        self.limits = limits
        self.schedule: Schedule[Any] = Schedule(
            limits.slots,
            StepBudget(limits.share, limits.share),
            patience=limits.goals.first_step_seconds,
            whole=limits.context,
            split=not parallel,
            batched=False,
            spare=spare,
        )
        #: Measures decode steps.
        self.decoding = Stopwatch()
        self.tokens = 0

    @property
    def used(self) -> int:
        return self.schedule.used

    @property
    def rows(self) -> int:
        """Sequences for which there is memory: the slots, and spare ones for tenants without a slot."""
        return self.schedule.slots + self.schedule.spare

    @property
    def waiting(self) -> int:
        return self.schedule.waiting

    @property
    def batches(self) -> Counter[int]:
        return self._steps.batches

    @property
    def batch_counts(self) -> BatchCounts:
        """Passes and steps so far, as ``Runner.batch_counts``."""
        return self._steps.counts

    @property
    def copied_prompts(self) -> int:
        """Prompts that were copied from an equal one instead of being computed."""
        return self._steps.copied_prompts

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of keys and values of one token, known after ``start``."""
        return self._steps.kv_token_bytes

    async def start(self) -> None:
        """Allocate memory, run first passes, and find the budgets of the goals."""
        await self._compute(self._steps.warm_up, self.limits.decodes)
        if self.limits.goals:
            await self._compute(self._measure_budgets)

    async def start_decoding(self) -> None:
        """Allocate slots, and find budgets with them, if ``start`` did not.

        There must be no sequence yet: the slots are measured.
        """
        if not self.limits.decodes:
            self.limits = self.limits._replace(decodes=True)
            await self.start()

    def _measure_budgets(self) -> None:
        """Measure decode steps by their sequences, and prefills by their tokens."""
        context, goals, decode = self.limits.context, self.limits.goals, None
        if self.limits.decodes and goals.tbt:
            length = max(1, min(_TYPICAL_CONTEXT_TOKENS, context // 2))
            decode = measure_costs(
                lambda count: self._steps.decode_seconds(count, length), 1, self.limits.slots, goals.tbt
            )
        least = min(_MIN_STEP_TOKENS, context)
        costs = measure_costs(self._steps.prefill_seconds, least, context, max(goals.tbt, goals.first_step_seconds))
        beside, alone = find_budget(
            costs.seconds, goals, decode.seconds(1) if decode else 0.0, BudgetSizes(least, context, self.limits.share)
        )
        self.schedule.costs = StepCosts(goals, decode)
        self.schedule.budget = StepBudget(beside, alone, least=least, costs=costs)

    # For callers that wait for tokens

    @contextmanager
    def admit(self, sequence: S) -> Iterator[S]:
        """Queue ``sequence``; the end of the block, by any path, frees its slot before the next step.

        A sequence that was handed over in the meantime continues.
        """
        self.raise_if_failed()
        member = sequence.member
        length = 1 if member is not None and member.filled is not None else sequence.length - sequence.done
        sequence.is_whole = not self._steps.splits_prompts
        spans = sequence.spans if length > 1 else ()
        clock = sequence.clock
        self.schedule.add_prompt(sequence, length, time.monotonic(), spans, clock.tenant, clock.came)
        if member is not None:
            member.sequence = sequence
        with self._hold_ownership(sequence):
            yield sequence

    @contextmanager
    def admit_prefilled(self, sequence: S) -> Iterator[S]:
        """Queue a sequence that was prefilled elsewhere: ``wait_for_slot`` and ``insert_cache`` come next."""
        self.raise_if_failed()
        self.schedule.add_prefilled(sequence, time.monotonic(), sequence.clock.tenant, sequence.clock.came)
        with self._hold_ownership(sequence):
            yield sequence

    @contextmanager
    def adopt_paused(self, sequence: S) -> Iterator[S]:
        """Continue a sequence that pauses in its slot. Its previous owner has no further part in it."""
        self.raise_if_failed()
        sequence.owner += 1
        sequence.clock = current_clock()
        self.schedule.start_decode(sequence)
        with self._hold_ownership(sequence):
            yield sequence

    async def wait_for_slot(self, sequence: S) -> None:
        """Wait until an arriving sequence has its slot: its cache is not requested before."""
        if not self.schedule.has_slot(sequence):
            await self._wait_step(sequence)

    async def insert_cache(self, sequence: S, came: Packed) -> None:
        """Copy the cache into the slot and start the sequence; ``came`` may be released afterwards.

        Raises ``ProtocolError`` for the cache of another model.
        """
        sequence.came = came
        self._arrived.append(sequence)
        await self._wait_step(sequence)
        sequence.broken = False

    async def replay_tokens(self, sequence: S, length: int, tokens: Rows[int]) -> bool:
        """Replace the tokens of ``sequence`` after ``length`` positions by ``tokens``.

        The sequence must keep its slot. Its next steps, as many as ``tokens``, deliver the side data of these tokens.
        Returns False if it has no slot.
        """
        if not self.schedule.has_slot(sequence):
            return False
        self._replays.append(_Replay(sequence, length, tokens))
        await self._wait_step(sequence)
        return True

    @contextmanager
    def _hold_ownership(self, sequence: S) -> Iterator[None]:
        owner = sequence.owner
        self._wake.set()
        try:
            yield
        finally:
            if sequence.owner == owner:
                sequence.gone = True
                self.schedule.remove_key(sequence)
                self._wake.set()

    async def _wait_step(self, sequence: S) -> None:
        self.raise_if_failed()
        sequence.step = asyncio.get_running_loop().create_future()
        self._wake.set()
        await sequence.step

    def raise_if_failed(self) -> None:
        """Raise the error that ended the loop, if it has ended."""
        if self._failed is not None:
            raise self._failed

    def wake(self) -> None:
        """Wake the loop: a sequence may be ready, or a media item may have arrived."""
        self._wake.set()

    # The loop

    async def serve(self) -> None:
        """Run turns until cancelled; sleep while no sequence is ready."""
        try:
            while True:
                self._wake.clear()
                if not await self._run_turn():
                    await self._wake.wait()
        except Exception as error:  # the engine's own boundary: callers must not wait forever
            self._fail_all(error)
            raise
        finally:
            self._wake.set()  # ends the call in progress
            self._fail_all(engine_closed_error())

    async def _run_turn(self) -> bool:
        # Sequences may end meanwhile: admit others only when the slots that the schedule counts as free are free.
        while any(sequence.gone for sequence in self._steps.active):
            await self._compute(self._steps.evict)
        self._begin_replays()
        for sequence in self.schedule.admit_waiting():
            sequence.go_on()
        if self._arrived:
            await self._insert_arrived()
        turn = self.schedule.next_step(self._feed.is_ready)
        if turn.media and self._parallel:
            await asyncio.gather(self._step_language_model(turn), self._encode_media(turn))
        else:
            await self._step_language_model(turn)
            await self._encode_media(turn)
        return bool(turn)

    def _begin_replays(self) -> None:
        replays, self._replays = self._replays, []
        for sequence, length, tokens in replays:
            if not sequence.gone:
                self._steps.replay_tokens(sequence, length, tokens)
                self.schedule.pause_decode(sequence)
                self.schedule.start_decode(sequence)
                sequence.go_on()

    async def _insert_arrived(self) -> None:
        arrivals, self._arrived = self._arrived, []
        alive = [sequence for sequence in arrivals if not sequence.gone]
        for sequence in alive:
            sequence.clock.set_now()
        with charge_jobs([(sequence.clock, float(sequence.length)) for sequence in alive]):
            outcomes = await self._compute(self._steps.insert_sequences, alive)
        for sequence, error in outcomes:
            if error is not None:
                sequence.fail(error)
            elif not sequence.gone:
                self.schedule.start_decode(sequence)
                sequence.go_on()

    async def _step_language_model(self, turn: StepPlan[Any]) -> None:
        began, steps = time.perf_counter(), 1
        if turn.decode:
            steps = await self._decode(turn.decode)
        if turn.prefill:
            for sequence, _ in turn.prefill:
                sequence.clock.set_now()
            with charge_jobs([(sequence.clock, float(size)) for sequence, size in turn.prefill]):
                prefill_outcomes = await self._compute(self._steps.prefill, turn.prefill)
            self._share_prompts(prefill_outcomes)
            for sequence, result in prefill_outcomes:
                if isinstance(result, TokenStep) and not (sequence.gone or sequence.pauses or result.finish):
                    self.schedule.start_decode(sequence)
            self._deliver_outcomes(prefill_outcomes)
        if turn.decode or turn.prefill:
            self.schedule.turns.observe((time.perf_counter() - began) / steps)

    async def _decode(self, batch: Rows[S]) -> int:
        """Compute the next tokens of ``batch``, and deliver them; returns the number of steps."""
        shares = [(sequence.clock, 1.0) for sequence in batch]
        step: Callable[[Rows[S]], list[StepOutcome]] = self._steps.decode
        if self._is_steady(batch):
            step = partial(self._decode_on, asyncio.get_running_loop(), shares)
        with charge_jobs(shares, kind="decode"):
            outcomes = await self._compute(self.decoding, step, batch)
        self._deliver_outcomes(outcomes)
        return int(shares[0][1])

    def _is_steady(self, batch: Rows[S]) -> bool:
        """Return True if the steps after the next one are those of ``batch`` as well, until something wakes the loop.

        Tenants take turns, so all sequences must be those of one.
        """
        schedule = self.schedule
        return (
            self._feed.always_ready
            and len(batch) == schedule.used
            and not schedule.media
            and len({sequence.clock.tenant for sequence in batch}) == 1
        )

    def _decode_on(self, loop: asyncio.AbstractEventLoop, shares: list[Share], batch: Rows[S]) -> list[StepOutcome]:
        """Compute steps of ``batch`` without waiting for the loop, until something else is due there.

        Runs in the compute thread. ``shares`` get the number of steps as weight.
        """
        until, before = time.perf_counter() + _CALL_SECONDS, self._steps.counts.steps

        def goes_on() -> bool:
            return not (self._wake.is_set() or self._compute.has_waiting) and time.perf_counter() < until

        def deliver(outcomes: list[StepOutcome]) -> None:
            loop.call_soon_threadsafe(self._deliver_outcomes, outcomes)

        outcomes = self._steps.decode_while(batch, goes_on, deliver)
        steps = float(max(1, self._steps.counts.steps - before))
        shares[:] = [(clock, steps) for clock, _ in shares]
        return outcomes

    def _share_prompts(self, outcomes: list[StepOutcome]) -> None:
        """Remove sequences whose prompts are complete from their groups; the others there only need a copy."""
        members = [sequence.member for sequence, _ in outcomes if sequence.member is not None]
        for member in members:
            member.leave_group()
            self.schedule.finish_prompt(member.sequence)
        for member in members:
            for other in member.waiting():
                self.schedule.shorten_prompt(other, 1)

    async def _encode_media(self, turn: StepPlan[Any]) -> None:
        if turn.media:
            await turn.media[0].run_batch(turn.media)
            for item in turn.media:
                self.schedule.remove_key(item)

    def _deliver_outcomes(self, outcomes: list[StepOutcome]) -> None:
        for sequence, result in outcomes:
            if isinstance(result, TokenStep):
                self.tokens += 1
                for earlier in sequence.take_earlier() if sequence.prefix else ():
                    sequence.inbox.put(earlier)
                if result.finish is not None:
                    sequence.gone |= not (sequence.keeps_slot and self.schedule.pause_decode(sequence))
                sequence.inbox.put(result)
            else:
                sequence.gone = sequence.broken = True
                sequence.inbox.fail(result)
            if sequence.gone:
                self.schedule.remove_key(sequence)

    def _fail_all(self, error: Exception) -> None:
        self._failed = self._failed or error
        for each in list(self.schedule):
            each.fail(self._failed)


D = TypeVar("D", bound=Decoder)


class HostedDecoder(Hosted[D], Generic[D, S]):
    """A decoder, its ``engine``, and ``context``, the longest sequence; both are set by ``load``.

    ``feed`` makes the engine's inputs. A ``limits.context`` of 0 means the model's own.
    """

    def __init__(
        self,
        source: ComponentSource,
        threads: int,
        limits: EngineLimits,
        feed: Callable[[D], Feed[S]],
        *,
        beside: bool = False,
    ) -> None:
        super().__init__(source, threads, beside=beside)
        self.engine: BatchingEngine[S]
        self.context: int
        self._limits = limits
        self._feed = feed
        self._parallel = beside and source.device.startswith("cuda")

    @property
    def batch_counts(self) -> BatchCounts:
        """See ``Runner``."""
        return self.engine.batch_counts

    def stats(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "parameters": self.model.parameters,
            "slots": self._limits.slots,
            "used": engine.used,
            "waiting": engine.waiting,
            "tokens": engine.tokens,
            "batches": by_size(engine.batches),
            "copied_prompts": engine.copied_prompts,
            "kv_bytes_per_token": engine.kv_token_bytes,
            "kv_bytes": engine.kv_token_bytes * engine.rows * self.context,
            **self.memory_stats(),
        }

    def _load_model(self) -> D:
        model = super()._load_model()
        if self._limits.int8:
            quantise_weights(model.module)
        pack_weights(model.module)
        return model

    async def _set_up(self) -> None:
        self.context = min(self._limits.context or self.model.context, self.model.context)
        limits = self._limits._replace(context=self.context)
        self.engine = BatchingEngine(self.model, self._feed(self.model), self._compute, limits, parallel=self._parallel)
        await self.engine.start()
        self._start_loop(self.engine.serve())
