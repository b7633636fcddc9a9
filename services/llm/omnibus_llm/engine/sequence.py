"""One request inside the engine, and the inbox that delivers its tokens.

Prompts shared by several sequences of one invocation: computed for the first, copied for the others.

Members join before they read their inputs, so that none is missed. The first member whose prompt is complete offers its
keys and values, which are kept until all members have left. Members join and leave on the event loop. The compute
thread looks at them once for each prompt.

A thinker's request inside the engine, and the inputs of its steps.
"""

import asyncio
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Job
from omnibus_llm.engine.sampler import Picker, TokenLogprobs
from omnibus_models.attention import Attention
from omnibus_models.contract import PrefillInputs, PromptOptions, Thinker, TokenSamplingParams
from omnibus_models.device import copy_to_host

#: Inputs of a call that make its prompt, in addition to the options of the chat template.
PROMPT_INPUTS = ("messages", "items")


class FilledPrompt(NamedTuple):
    """Keys and values of a prompt, and its last hidden row [1, H]."""

    cache: DynamicCache
    hidden: Tensor


class PromptGroup:
    """Sequences that start with one prompt, computed with one adapter or none."""

    def __init__(self, options: PromptOptions, adapter: str) -> None:
        self.options = options
        self.adapter = adapter
        self.members: set[PromptMember] = set()
        self.filled: FilledPrompt | None = None


class PromptMember:
    """One of a group, until its prompt is computed or copied."""

    def __init__(self, group: PromptGroup) -> None:
        self.group = group
        self.sequence: Any = None  # None until its inputs are read
        group.members.add(self)

    @property
    def filled(self) -> FilledPrompt | None:
        """The prompt, if another member has computed it. It is available until this member leaves."""
        return self.group.filled

    def offer_prompt(self, cache: DynamicCache, hidden: Tensor) -> None:
        """Offer the prompt to members that wait for it. Runs in the compute thread."""
        if self.group.filled is None and len(self.group.members) > 1:
            self.group.filled = FilledPrompt(cache, hidden)

    def leave_group(self) -> None:
        """Leave the group. Leaving twice is harmless."""
        self.group.members.discard(self)
        if not self.group.members:
            self.group.filled = None

    def waiting(self) -> Iterator[Any]:
        """Yield the sequences that can copy the prompt."""
        if self.group.filled is not None:
            yield from (each.sequence for each in self.group.members if each.sequence is not None)


class PromptGroups:
    """The groups of all current invocations."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], PromptGroup] = {}

    @contextmanager
    def join(self, job: Job, options: PromptOptions, adapter: str = "") -> Iterator[PromptMember | None]:
        """Join the calls with the prompt of ``job``, until the block ends; yields None without others.

        ``options`` are those of the chat template; ``adapter`` is the adapter that computes the prompt.
        """
        first = job.first_equal_call(PROMPT_INPUTS)
        if first is None:
            yield None
            return
        key = (job.invocation, first)
        group = self._groups.setdefault(key, PromptGroup(options, adapter))
        if (group.options, group.adapter) != (options, adapter):
            yield None
            return
        member = PromptMember(group)
        try:
            yield member
        finally:
            member.leave_group()
            if not group.members and self._groups.get(key) is group:
                del self._groups[key]


_EMPTY_TENSOR = torch.empty(0)

#: The metadata of a packed cache, and the cache; see ``omnibus_llm.engine.slot_cache``.
Packed = tuple[dict[str, Any], np.ndarray | None]


class TokenStep(NamedTuple):
    """One generated token. ``finish`` is ``stop`` or ``length`` on the last; ``side`` is the data for a talker.

    ``logprobs`` are set if the request asks for them.
    """

    token: int
    finish: str | None
    side: np.ndarray | None = None
    logprobs: TokenLogprobs | None = None


class Inbox:
    """Steps of one sequence, from the engine to the request's coroutine."""

    def __init__(self) -> None:
        self._steps: list[TokenStep] = []
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def put(self, step: TokenStep) -> None:
        self._steps.append(step)
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in ``take_steps`` after all earlier steps are taken."""
        self._error = self._error or error
        self._news.set()

    async def take_steps(self) -> list[TokenStep]:
        """Wait for at least one step and return all available ones."""
        await self._news.wait()
        if self._error is not None and not self._steps:
            raise self._error
        if self._error is None:
            self._news.clear()
        steps, self._steps = self._steps, []
        return steps


class DecoderSequence:
    """One request inside the engine: first waiting, then prefilling, then in a slot.

    ``limit`` is the most tokens to generate; ``ends`` are the tokens that end it. A sequence with ``pauses`` stops
    after its first token, until its decode continues it. If ``stays`` is False, it then takes no slot here, and its
    cache is packed for another executor.
    """

    stays = True
    pauses = False
    keeps_slot = False  # also after its last token, until its owner releases it
    is_whole = False  # its prompt is computed in one pass
    adapter: int | None = None  # its number, see ``omnibus_models.adapters``; None: the base model

    def __init__(self, prefill: PrefillInputs, picker: Picker, limit: int, ends: frozenset[int]) -> None:
        self.inputs = prefill.inputs
        self.positions = prefill.positions
        self.length = prefill.inputs.shape[0]
        self.delta = prefill.delta
        self.attention: Attention | None = prefill.attention
        self.picker = picker
        self.limit = limit
        self.ends = ends
        self.cache = DynamicCache()
        self.done = 0  # computed prompt positions
        self.token = -1  # the last generated token
        self.count = 0  # generated tokens
        self.gone = False  # finished, failed or cancelled: its slot must be freed
        self.broken = False  # its keys and values may hold NaN
        self.inbox = Inbox()
        self.clock = current_clock()  # of its job
        self.goes: Packed = ({}, None)  # its cache, for another executor
        self.came: Packed = ({}, None)  # its cache, from another executor
        #: Tokens that an earlier attempt generated: they are prefilled after the prompt, ``prompt`` positions long.
        self.prefix: tuple[int, ...] = ()
        self.prompt = self.length
        self.sides: list[np.ndarray | None] = []  # the side data of each of them
        self.step: asyncio.Future[None] | None = None  # other events that its owner waits for
        self.owner = 0  # changes when it is handed over
        self.member: PromptMember | None = None  # of the group with the same prompt
        #: Called in the compute thread when all of the prompt is in the cache, and its values are numbers.
        self.on_prefilled: Callable[[], None] | None = None

    @property
    def is_prefilled(self) -> bool:
        return self.done == self.length

    @property
    def spans(self) -> Rows[tuple[int, int]]:
        """Ranges [begin, end) of prompt positions that no share may cut."""
        if self.is_whole:
            return ((0, self.length),)
        return () if self.attention is None else self.attention.spans

    def accept_token(self, token: int) -> str | None:
        """Take the next token; returns the reason to end, if any."""
        self.token = token
        self.count += 1
        if token in self.ends:
            return "stop"
        return "length" if self.count >= self.limit else None

    def begin_after(self, tokens: Rows[int], inputs: Tensor) -> None:
        """Advance past ``tokens`` [n], whose ``inputs`` [n, H] are prefilled as well."""
        more = self.length + self.delta + torch.arange(len(tokens), device=self.positions.device)
        wider = self.inputs.shape[1] - inputs.shape[1]  # rows of media may be
        self.inputs = torch.cat([self.inputs, nn.functional.pad(inputs, (0, wider))])
        self.positions = torch.cat([self.positions, more.expand(len(self.positions), -1)], dim=1)
        self.prefix, self.length = tuple(tokens), self.inputs.shape[0]
        for token in tokens:
            self.picker.resume_after(token)
            self.accept_token(token)

    def follow_script(self, tokens: Rows[int]) -> None:
        """Prepare to take ``tokens`` one by one, as a script.

        The choice of the last step must be discarded.
        """
        self.token, self.count, self.limit, self.ends = tokens[0], 0, len(tokens), frozenset()
        settings = TokenSamplingParams(max_tokens=len(tokens))
        self.picker = Picker(settings, 0, script=[*tokens[1:], tokens[-1]])
        self.inbox = Inbox()

    def take_earlier(self) -> list[TokenStep]:
        """Return the steps of an earlier attempt, once, with their side data."""
        sides = self.sides or [None] * len(self.prefix)
        steps = [TokenStep(token, None, side) for token, side in zip(self.prefix, sides, strict=True)]
        self.prefix, self.sides = (), []
        return steps

    def release_prefill(self) -> None:
        """Release the memory that only the prefill needs."""
        self.inputs = self.positions = _EMPTY_TENSOR
        self.attention = None
        self.cache = DynamicCache()
        self.on_prefilled = None

    def fail(self, error: Exception) -> None:
        """Raise ``error`` wherever the owner waits."""
        self.inbox.fail(error)
        if self.step is not None and not self.step.done():
            self.step.set_exception(error)

    def go_on(self) -> None:
        """Resume an owner that waits for something other than tokens."""
        if self.step is not None and not self.step.done():
            self.step.set_result(None)


class StepOutcome(NamedTuple):
    """Result of one turn of the engine for one sequence: a step, or the error that ends it."""

    sequence: Any
    result: TokenStep | Exception


@contextmanager
def relay_errors(inbox: Inbox) -> Iterator[None]:
    """Pass an error of a helper task to the coroutine that answers."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a task boundary: raised again in ``take_steps``
        inbox.fail(error)


class Thinking(DecoderSequence):
    """One request of a thinker; ``voice`` is None unless a talker follows."""

    def __init__(self, prefill: PrefillInputs, picker: Picker, ends: frozenset[int], voice: str | None) -> None:
        super().__init__(prefill, picker, picker.settings.max_tokens, ends)
        self.prefill: PrefillInputs | None = prefill
        self.voice = voice
        self.cache_key = ""  # of its conversation, whose prompt is kept; empty: none
        self.hidden: list[Tensor] = []

    def release_prefill(self) -> None:
        super().release_prefill()
        self.prefill = None
        self.hidden = []


class ThinkFeed:
    """Feeds a thinker with its own last token; each token's row goes to the talker, if one follows."""

    always_ready = True

    def __init__(self, thinker: Thinker) -> None:
        self._thinker = thinker

    def is_ready(self, sequence: Thinking) -> bool:
        return True

    def build_inputs(self, batch: Rows[Thinking]) -> Tensor:
        return self._thinker.embed(torch.tensor([sequence.token for sequence in batch], device=self._thinker.device))

    def observe_prefill(self, sequence: Thinking, hidden: Tensor) -> None:
        if sequence.voice is not None:
            sequence.hidden.append(hidden)

    def first_side(self, sequence: Thinking) -> np.ndarray | None:
        if sequence.voice is None or sequence.prefill is None:
            return None
        hidden = torch.cat(sequence.hidden)
        prompt = copy_to_host(self._thinker.talker_prompt(sequence.prefill, hidden[: sequence.prompt], sequence.voice))
        if not sequence.prefix:
            return prompt
        inputs = sequence.inputs[sequence.prompt :]
        rows = copy_to_host(self._thinker.talker_row(inputs, hidden[sequence.prompt :]))
        sequence.sides = [prompt, *rows[:-1]]
        side: np.ndarray = rows[-1]
        return side

    def step_sides(self, batch: Rows[Thinking], inputs: Tensor, hidden: Tensor) -> list[np.ndarray | None]:
        if all(sequence.voice is None for sequence in batch):
            return [None] * len(batch)
        rows = copy_to_host(self._thinker.talker_row(inputs, hidden))
        return [None if sequence.voice is None else row for sequence, row in zip(batch, rows, strict=True)]

    def token_sides(
        self, batch: Rows[Thinking], hidden: Tensor, tokens: list[int], sides: list[np.ndarray | None]
    ) -> list[np.ndarray | None]:
        return sides
