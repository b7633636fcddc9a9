"""Masks of the tokens that a grammar allows next, by ``llguidance``.

The mask for a sequence's next token depends only on its tokens. A separate thread computes it while the model computes
its logits. Grammars are compiled once, in the same thread, and copied for each request.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest, StageFailed
from omnibus.structured.grammar import first_line, limits
from omnibus_engines.component import run_in_pool

#: Compiled grammars to keep.
MAX_GRAMMARS = 64
#: Seconds that a request waits for its grammar.
COMPILE_TIMEOUT_SECONDS = 10.0
_WORD_BITS = 32
#: The line with which ``llguidance`` reports a limit: items of a row or step, states or fuel of its lexer.
_TOO_COMPLEX = re.compile(r"^Stop: \w+TooComplex$", re.MULTILINE)


class GrammarState:
    """State of a grammar after the tokens of one answer."""

    def __init__(self, matcher: Any, masks: "MaskThread") -> None:
        self._matcher = matcher
        self._masks = masks
        self._rows: Future[np.ndarray] | None = None  # of all states of the same batch
        self._row = 0

    def accept_token(self, token: int) -> None:
        """Advance past ``token``. Raises ``StageFailed`` if it is not allowed, ``BadRequest`` at a limit."""
        self._rows = None
        if not self._matcher.consume_token(token):
            raise self._stop_error()

    def expect_row(self, rows: "Future[np.ndarray]", row: int) -> Any:
        """Use ``row`` of ``rows`` as the next mask; returns the matcher that computes it."""
        self._rows, self._row = rows, row
        return self._matcher

    def prepare_all(self, states: "Sequence[GrammarState]") -> None:
        """Start to compute the next masks of ``states`` of one model."""
        self._masks.prepare(states)

    def next_mask(self) -> Tensor:
        """Return bool [V]: tokens allowed next. Raises ``BadRequest`` for a grammar that has become too complex."""
        if self._rows is None:
            self._masks.prepare([self])
        assert self._rows is not None  # noqa: S101 - for the type checker
        mask = torch.from_numpy(self._rows.result()[self._row])
        if self._matcher.is_error():
            raise self._stop_error()
        return mask

    def _stop_error(self) -> BadRequest | StageFailed:
        """Return the error of a matcher that has stopped.

        The schema of an answer determines which limits it reaches.
        """
        error = self._matcher.get_error()
        reason = first_line(error)
        if _TOO_COMPLEX.search(error):
            message = f"the schema is too complex for the grammar of its answers: send a simpler one ({reason})"
            return BadRequest(message, param="response_format")
        return StageFailed(f"the grammar cannot continue: {reason}")


class MaskThread:
    """Computes masks of ``vocabulary`` tokens, those of a step in one call."""

    def __init__(self, vocabulary: int) -> None:
        from llguidance import LLExecutor

        self._vocabulary = vocabulary
        self._width = -(-vocabulary // _WORD_BITS)
        self._executor = LLExecutor()
        self._pool = ThreadPoolExecutor(1, "masks")

    def prepare(self, states: Sequence[GrammarState]) -> None:
        """Start to compute the next masks of ``states``."""
        rows: Future[np.ndarray] = Future()
        matchers = [(state.expect_row(rows, row), row) for row, state in enumerate(states)]
        self._pool.submit(self._fill_rows, matchers, rows)

    def _fill_rows(self, matchers: list[tuple[Any, int]], rows: "Future[np.ndarray]") -> None:
        from llguidance.numpy import fill_next_token_bitmask_par

        try:
            words = np.zeros((len(matchers), self._width), np.int32)
            fill_next_token_bitmask_par(self._executor, matchers, words)
            bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
            rows.set_result(bits[:, : self._vocabulary].astype(bool))
        except BaseException as error:  # noqa: BLE001 - raised again where the mask is read
            rows.set_exception(error)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Grammars:
    """Grammars for the tokens of one model. ``tokenizer`` is a fast one of ``transformers``; ``ends`` end an answer."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> None:
        self._source = tokenizer
        self._vocabulary = vocabulary
        self._ends = list(ends)
        self._tokenizer: Any = None
        self._masks: MaskThread | None = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, "grammars")

    async def open(self, grammar: str) -> GrammarState:
        """Return the state before the first token of an answer. Raises ``BadRequest`` for an invalid grammar."""
        try:
            async with asyncio.timeout(COMPILE_TIMEOUT_SECONDS):
                return await run_in_pool(self._pool, self._open, grammar)
        except TimeoutError:
            raise BadRequest(
                "the schema takes too long to compile: send a simpler one", param="response_format"
            ) from None

    def _open(self, grammar: str) -> GrammarState:
        from llguidance import LLMatcher
        from llguidance.hf import from_tokenizer

        if self._masks is None:
            self._tokenizer = from_tokenizer(self._source, self._vocabulary, self._ends)
            self._masks = MaskThread(self._vocabulary)
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits())
            if matcher.is_error():
                raise BadRequest(
                    f"the schema cannot be used: {first_line(matcher.get_error())}", param="response_format"
                )
            self._compiled[grammar] = matcher
            if len(self._compiled) > MAX_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarState(matcher.deep_copy(), self._masks)

    def close(self) -> None:
        """End both threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._masks is not None:
            self._masks.close()
