"""Choice of the next token of each row. No row depends on another row's settings or random numbers.

Changes of logits that a request specifies: token biases, penalties for generated tokens, and forbidden tokens.

Masks of the tokens that a grammar allows next, by ``llguidance``.

The mask for a sequence's next token depends only on its tokens. A separate thread computes it while the model computes
its logits. Grammars are compiled once, in the same thread, and copied for each request.
"""

import asyncio
import math
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest, StageFailed
from omnibus.structured.grammar import first_line, limits
from omnibus_engines.component import run_in_pool
from omnibus_models.contract import TokenSamplingParams


class LogitChanges:
    """Bias, penalties and forbidden tokens of one request over ``vocabulary`` tokens.

    They are defined as in the APIs of OpenAI and vLLM.
    """

    def __init__(self, settings: TokenSamplingParams, vocabulary: int) -> None:
        _require_known([*settings.logit_bias], vocabulary, "logit_bias")
        _require_known(settings.allowed, vocabulary, "allowed_token_ids")
        self._ids = torch.tensor([*settings.logit_bias], dtype=torch.long)
        self._bias = torch.tensor([*settings.logit_bias.values()], dtype=torch.float32)
        self._presence, self._frequency = settings.presence_penalty, settings.frequency_penalty
        has_penalty = bool(self._presence or self._frequency)
        self._counts = torch.zeros(vocabulary, dtype=torch.float32) if has_penalty else None
        self._forbidden: Tensor | None = None
        if settings.allowed:
            self._forbidden = torch.ones(vocabulary, dtype=torch.bool)
            self._forbidden[[*settings.allowed]] = False
        self._banned = settings.banned
        self._last: deque[int] = deque(maxlen=max((len(each) - 1 for each in self._banned), default=0))
        self._min_tokens = settings.min_tokens
        self._ends = [token for token in settings.ends if token < vocabulary]
        self._generated = 0

    def count_token(self, token: int) -> None:
        """Count a generated token."""
        self._generated += 1
        self._last.append(token)
        if self._counts is not None:
            self._counts[token] += 1

    def mask_tokens(self, logits: Tensor) -> Tensor:
        """Return logits [V] with those of tokens forbidden next at -inf."""
        if self._forbidden is not None:
            logits = logits.masked_fill(self._forbidden.to(logits.device), -math.inf)
        last = list(self._last)
        never = [each[-1] for each in self._banned if len(each) == 1 or last[1 - len(each) :] == list(each[:-1])]
        if self._generated < self._min_tokens:
            never += self._ends
        if not never:
            return logits
        return logits.index_fill(0, torch.tensor(never, device=logits.device), -math.inf)

    def apply_bias(self, logits: Tensor) -> Tensor:
        """Return logits [V] plus the bias."""
        if not len(self._ids):
            return logits
        return logits.index_add(0, self._ids.to(logits.device), self._bias.to(logits))

    def apply_penalties(self, logits: Tensor) -> Tensor:
        """Return logits [V] minus the penalties of generated tokens: one for each occurrence, one for any."""
        if self._counts is None:
            return logits
        counts = self._counts.to(logits)
        return logits - self._frequency * counts - self._presence * (counts > 0)


def _require_known(tokens: Sequence[int], vocabulary: int, param: str) -> None:
    if unknown := [token for token in tokens if token >= vocabulary]:
        raise BadRequest(f"{param} names token {unknown[0]}, but this model has {vocabulary} tokens", param=param)


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


#: Below this, sampling is greedy: division by the temperature would give values that are not numbers.
MIN_TEMPERATURE = 1e-5
_KEYS = 2**63 - 1


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities: of a chosen token, and of the likeliest ones, best first."""

    chosen: float
    ids: list[int]
    values: list[float]


class Picker:
    """The choices of one request: its settings, its own random numbers and, for penalties, its history.

    With a ``script`` nothing is chosen: its tokens are taken in order. A ``grammar`` restricts the choice.
    """

    def __init__(
        self,
        settings: TokenSamplingParams,
        vocabulary: int,
        history: Iterable[int] = (),
        script: Sequence[int] = (),
        grammar: GrammarState | None = None,
    ) -> None:
        self.settings = settings
        self.grammar = None if script else grammar
        self.logprobs: TokenLogprobs | None = None  # of the last choice, if they are reported
        self._script = deque(script)
        self._changes = LogitChanges(settings, vocabulary) if _changes_logits(settings) else None
        # The generator is on the CPU, so that a seed gives the same draws on every device.
        self._generator = torch.Generator().manual_seed(settings.seed % 2**63)
        self._seen: Tensor | None = None
        if settings.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocabulary, dtype=torch.bool)
            self._seen[[token for token in history if token < vocabulary]] = True

    @property
    def changes_logits(self) -> bool:
        """True if the row of this request must be changed or reported."""
        return self._seen is not None or self._changes is not None or self.settings.logprobs is not None

    @property
    def is_greedy(self) -> bool:
        return self.settings.temperature < MIN_TEMPERATURE or bool(self._script)

    def apply_script(self, token: int) -> int:
        """Return the next token of the script, or ``token`` without one."""
        return self._script.popleft() if self._script else token

    def draw_key(self) -> int:
        """Return the next random number: 63 bits, from which those of all tokens are computed."""
        return int(torch.randint(_KEYS, (), generator=self._generator))

    def resume_after(self, token: int) -> None:
        """Advance past ``token``, which was chosen elsewhere with the same settings."""
        if not self.is_greedy:
            self.draw_key()
        self.record_token(self.apply_script(token))

    def record_token(self, token: int) -> None:
        """Record a chosen token, for penalties and for the grammar."""
        if self._seen is not None:
            self._seen[token] = True
        if self._changes is not None:
            self._changes.count_token(token)
        if self.grammar is not None:
            self.grammar.accept_token(token)

    def change_logits(self, logits: Tensor) -> Tensor:
        """Apply bias, then penalties: [V] to [V]."""
        if self._changes is None:
            return self.apply_penalty(logits)
        biased_logits = self._changes.apply_bias(self._changes.mask_tokens(logits))
        return self._changes.apply_penalties(self.apply_penalty(biased_logits))

    def report_logprobs(self, logits: Tensor, token: int) -> None:
        """Record the probabilities in ``logits`` [V] for ``token``, if requested."""
        count = self.settings.logprobs
        if count is None:
            return
        values = logits.log_softmax(-1)
        best, ids = values.topk(min(count, len(values)))
        pairs = [(id, value) for id, value in zip(ids.tolist(), best.tolist(), strict=True) if value > -math.inf]
        self.logprobs = TokenLogprobs(float(values[token]), [id for id, _ in pairs], [value for _, value in pairs])

    def apply_penalty(self, logits: Tensor) -> Tensor:
        """Apply the repetition penalty: [V] to [V] (Keskar et al. 2019, CTRL, section 4.1)."""
        if self._seen is None:
            return logits
        penalty = self.settings.repetition_penalty
        weaker = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(self._seen.to(logits.device), weaker, logits)


def choose_tokens(logits: Tensor, pickers: Sequence[Picker]) -> list[int]:
    """Choose one token for each row of ``logits`` (float32 [B, V])."""
    grammar_rows = [(row, picker.grammar) for row, picker in enumerate(pickers) if picker.grammar is not None]
    if grammar_rows:
        logits = _mask_rows(logits, grammar_rows)
    raw = logits
    if changed_count := [picker.changes_logits for picker in pickers].count(True):
        logits = torch.stack([picker.change_logits(row) for picker, row in zip(pickers, logits, strict=True)])
    # NumPy's argmax takes a tenth of the time of torch's.
    tokens: list[int] = (logits.numpy() if logits.device.type == "cpu" else logits).argmax(-1).tolist()
    for (top_k, has_nucleus), rows in _rows_by_limits(pickers).items():
        drawn_tokens = _sample_rows(logits[rows], top_k, has_nucleus, [pickers[row] for row in rows])
        for row, token in zip(rows, drawn_tokens, strict=True):
            tokens[row] = token
    tokens = [picker.apply_script(token) for picker, token in zip(pickers, tokens, strict=True)]
    for row, (picker, token) in enumerate(zip(pickers, tokens, strict=True)):
        if changed_count:
            picker.report_logprobs(raw[row], token)
        picker.record_token(token)
    if grammar_rows:
        grammar_rows[0][1].prepare_all([state for _, state in grammar_rows])
    return tokens


def _mask_rows(logits: Tensor, grammar_rows: Sequence[tuple[int, GrammarState]]) -> Tensor:
    """Return ``logits`` [B, V] with tokens that grammars forbid at -inf."""
    rows = [row for row, _ in grammar_rows]
    masks = torch.stack([state.next_mask() for _, state in grammar_rows]).to(logits.device)
    if len(rows) == len(logits):
        return logits.masked_fill(~masks, -math.inf)
    masked_logits = logits.clone()
    masked_logits[rows] = logits[rows].masked_fill(~masks, -math.inf)
    return masked_logits


def _changes_logits(settings: TokenSamplingParams) -> bool:
    return bool(
        settings.logit_bias
        or settings.presence_penalty
        or settings.frequency_penalty
        or settings.min_tokens
        or settings.allowed
        or settings.banned
    )


def _rows_by_limits(pickers: Sequence[Picker]) -> dict[tuple[int, bool], list[int]]:
    # Rows are grouped by their own limits only: other rows never change how a row is computed.
    groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for row, picker in enumerate(pickers):
        if not picker.is_greedy:
            groups[picker.settings.top_k, picker.settings.top_p < 1].append(row)
    return groups


def _sample_rows(logits: Tensor, top_k: int, has_nucleus: bool, pickers: Sequence[Picker]) -> list[int]:
    """Draw one token for each row of ``logits``, with the settings of its picker and ``top_k``."""
    temperatures = _as_column([picker.settings.temperature for picker in pickers], logits)
    top_p = _as_column([picker.settings.top_p for picker in pickers], logits) if has_nucleus else None
    min_p = None
    if any(picker.settings.min_p for picker in pickers):
        min_p = _as_column([picker.settings.min_p for picker in pickers], logits)
    keys = torch.tensor([picker.draw_key() for picker in pickers], device=logits.device)
    tokens: list[int] = draw_tokens(logits, keys, temperatures, top_k, top_p, min_p).tolist()
    return tokens


def draw_tokens(
    logits: Tensor, keys: Tensor, temperatures: Tensor, top_k: int, top_p: Tensor | None, min_p: Tensor | None = None
) -> Tensor:
    """Draw one token for each row of ``logits`` [B, V] with the random numbers ``keys`` [B].

    Applies ``temperatures``, top-k, ``min_p``, then nucleus with ``top_p`` (Holtzman et al. 2020); they are [B, 1].
    Then takes the largest sum of logit and noise (Gumbel 1954; Maddison et al. 2014, A* sampling, section 2).

    The noise of a token depends on its id and not on its rank. Logits may be rounded differently in another batch, in a
    prefill instead of steps, or on another device. They still nearly always give the same token. Places in a cumulative
    distribution would instead move with the rounding of all tokens before.
    """
    logits = logits / temperatures
    if top_k or top_p is not None:
        logits, ids = torch.topk(logits, min(top_k or logits.shape[-1], logits.shape[-1]), dim=-1)
    else:
        ids = torch.arange(logits.shape[-1], device=logits.device).expand(logits.shape)
    if min_p is not None:
        logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + min_p.log(), -math.inf)
    if top_p is not None:
        logits = _keep_nucleus(logits, top_p)
    places = (logits + gumbel_noise(keys, ids)).argmax(-1, keepdim=True)
    return ids.gather(-1, places)[:, 0]


def _keep_nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """Return ``logits`` [B, K], best first, with tokens beyond ``top_p`` at -inf.

    ``top_p`` is a probability [B, 1].
    """
    chances = logits.softmax(-1)
    beyond = chances.cumsum(-1) - chances >= top_p
    beyond[:, 0] = False  # the best one always remains, even for a tiny top_p
    return logits.masked_fill(beyond, -math.inf)


def gumbel_noise(keys: Tensor, ids: Tensor) -> Tensor:
    """Return independent draws of the standard Gumbel distribution, float64 [B, K].

    They depend on ``keys`` [B] and token ``ids`` [B, K]. They are computed from integers, which are the same on all
    devices, by SplitMix64 (Steele et al. 2014, section 3).
    """
    bits = keys[:, None] + ids * -0x61C8864680B583EB  # integers wrap around
    bits = (bits ^ _shift_right(bits, 30)) * -0x40A7B892E31B1A47
    bits = (bits ^ _shift_right(bits, 27)) * -0x6B2FB644ECCEEE15
    bits ^= _shift_right(bits, 31)
    uniform = (_shift_right(bits, 12).double() + 0.5) * 2.0**-52  # strictly between 0 and 1
    return -(-uniform.log()).log()


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Shift 64-bit ``values``, with zeros from the left."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _as_column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
