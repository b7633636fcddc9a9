"""Choice of the next token of each row. No row depends on another row's settings or random numbers."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from omnibus_llm.engine.grammar import GrammarState
from omnibus_llm.engine.logit_changes import LogitChanges
from omnibus_models.contract import TokenSamplingParams

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
    """Draw one token for each row of ``logits``.

    Applies temperature, top-k, then nucleus (Holtzman et al. 2020), then takes the largest sum of logit and noise
    (Gumbel 1954; Maddison et al. 2014, A* sampling, section 2).

    The noise of a token depends on its id and not on its rank. Logits may be rounded differently in another batch, in a
    prefill instead of steps, or on another device. They still nearly always give the same token. Places in a cumulative
    distribution would instead move with the rounding of all tokens before.
    """
    logits = logits / _as_column([picker.settings.temperature for picker in pickers], logits)
    if top_k or has_nucleus:
        logits, ids = torch.topk(logits, min(top_k or logits.shape[-1], logits.shape[-1]), dim=-1)
    else:
        ids = torch.arange(logits.shape[-1], device=logits.device).expand(logits.shape)
    if any(picker.settings.min_p for picker in pickers):
        least = _as_column([picker.settings.min_p for picker in pickers], logits).log()
        logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + least, -math.inf)
    if has_nucleus:
        logits = _keep_nucleus(logits, _as_column([picker.settings.top_p for picker in pickers], logits))
    keys = torch.tensor([picker.draw_key() for picker in pickers], device=logits.device)
    places = (logits + gumbel_noise(keys, ids)).argmax(-1, keepdim=True)
    tokens: list[int] = ids.gather(-1, places)[:, 0].tolist()
    return tokens


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
