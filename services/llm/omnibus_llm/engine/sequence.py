"""One request inside the engine, and the inbox that delivers its tokens."""

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
from omnibus_llm.engine.prompt_group import PromptMember
from omnibus_llm.engine.sampler import Picker, TokenLogprobs
from omnibus_models.attention import Attention
from omnibus_models.contract import PrefillInputs, TokenSamplingParams

_EMPTY_TENSOR = torch.empty(0)

#: The metadata of a packed cache, and the cache; see ``omnibus_llm.engine.kv_codec``.
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
