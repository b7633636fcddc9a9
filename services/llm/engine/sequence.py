"""One request inside the engine, and the box in which its tokens wait for the request's own coroutine."""

import asyncio
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus.executor.job_clock import current_clock
from omnibus_models.attention import Attention
from omnibus_models.contract import PrefillInputs, TokenSamplingParams
from services.llm.engine.prompt_group import PromptMember
from services.llm.engine.sampler import Picker, TokenLogprobs

_EMPTY_TENSOR = torch.empty(0)

#: What is said of a packed cache, and the cache; see ``services.llm.engine.kv_codec``.
Packed = tuple[dict[str, Any], np.ndarray | None]


class TokenStep(NamedTuple):
    """One generated token. ``finish`` is ``stop`` or ``length`` on the last; ``side`` goes to a talker.

    ``logprobs`` are there where the request asks for them.
    """

    token: int
    finish: str | None
    side: np.ndarray | None = None
    logprobs: TokenLogprobs | None = None


class Inbox:
    """Steps of one sequence, from the engine to whoever answers the request."""

    def __init__(self) -> None:
        self._steps: list[TokenStep] = []
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def put(self, step: TokenStep) -> None:
        self._steps.append(step)
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in ``take_steps`` as soon as the steps before it were taken."""
        self._error = self._error or error
        self._news.set()

    async def take_steps(self) -> list[TokenStep]:
        """Wait for at least one step and return all there are."""
        await self._news.wait()
        if self._error is not None and not self._steps:
            raise self._error
        if self._error is None:
            self._news.clear()
        steps, self._steps = self._steps, []
        return steps


class DecoderSequence:
    """One request inside the engine: first waiting, then prefilling, then in a slot.

    ``limit`` is the most tokens to generate; ``ends`` are the tokens that end it. One that is split may
    ``pause`` after its first token, until somebody goes on with it, and need not ``stay``: then it takes no
    slot here, and its cache is packed to go elsewhere.
    """

    stays = True
    pauses = False
    keeps_slot = False  # after its last token too, until its owner leaves
    adapter: int | None = None  # its number, see ``omnibus_models.adapters``; None: the model as it is

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
        self.done = 0  # prompt positions that were computed
        self.token = -1  # the last generated token
        self.count = 0  # generated tokens
        self.gone = False  # finished, failed or cancelled: its slot is to be freed
        self.broken = False  # its keys and values may hold NaN
        self.inbox = Inbox()
        self.clock = current_clock()  # of the job that its steps are for
        self.goes: Packed = ({}, None)  # its cache, for another executor
        self.came: Packed = ({}, None)  # its cache, from another executor
        #: Tokens that an earlier attempt generated: they are prefilled behind the prompt, ``prompt`` positions long.
        self.prefix: tuple[int, ...] = ()
        self.prompt = self.length
        self.sides: list[np.ndarray | None] = []  # what goes with each of them
        self.step: asyncio.Future[None] | None = None  # what its owner waits for besides tokens
        self.owner = 0  # changes when it is handed over
        self.member: PromptMember | None = None  # of those that begin with the same prompt
        #: Called in the compute thread once all of the prompt is in the cache, and gives numbers.
        self.on_prefilled: Callable[[], None] | None = None

    @property
    def is_prefilled(self) -> bool:
        return self.done == self.length

    @property
    def spans(self) -> Rows[tuple[int, int]]:
        """Ranges [begin, end) of prompt positions that no share of the prompt may cut."""
        return () if self.attention is None else self.attention.spans

    def accept_token(self, token: int) -> str | None:
        """Take the next token and return the reason to end with it, if there is one."""
        self.token = token
        self.count += 1
        if token in self.ends:
            return "stop"
        return "length" if self.count >= self.limit else None

    def begin_after(self, tokens: Rows[int], inputs: Tensor) -> None:
        """Stand as after the choice of ``tokens`` [n], whose ``inputs`` [n, H] are prefilled as well."""
        more = self.length + self.delta + torch.arange(len(tokens), device=self.positions.device)
        self.inputs = torch.cat([self.inputs, inputs])
        self.positions = torch.cat([self.positions, more.expand(len(self.positions), -1)], dim=1)
        self.prefix, self.length = tuple(tokens), self.inputs.shape[0]
        for token in tokens:
            self.picker.resume_after(token)
            self.accept_token(token)

    def follow_script(self, tokens: Rows[int]) -> None:
        """Stand before the step that takes the first of ``tokens`` and chooses the second; the last step's choice is
        to be dropped."""
        self.token, self.count, self.limit, self.ends = tokens[0], 0, len(tokens), frozenset()
        settings = TokenSamplingParams(max_tokens=len(tokens))
        self.picker = Picker(settings, 0, script=[*tokens[1:], tokens[-1]])
        self.inbox = Inbox()

    def take_earlier(self) -> list[TokenStep]:
        """The steps of an earlier attempt, once: its tokens, and what goes with them."""
        sides = self.sides or [None] * len(self.prefix)
        steps = [TokenStep(token, None, side) for token, side in zip(self.prefix, sides, strict=True)]
        self.prefix, self.sides = (), []
        return steps

    def release_prefill(self) -> None:
        """Let go of what only the prefill needs."""
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
        """Resume the owner: what it waited for besides tokens is there."""
        if self.step is not None and not self.step.done():
            self.step.set_result(None)


class StepOutcome(NamedTuple):
    """Result of one turn of the engine for one sequence: a step, or the error that ends it."""

    sequence: Any
    result: TokenStep | Exception


@contextmanager
def relay_errors(inbox: Inbox) -> Iterator[None]:
    """Hand an error of a helper task over to the coroutine that answers the request."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a task boundary: raised again in ``take_steps``
        inbox.fail(error)
