"""Choice of the next token of each row. No row ever sees another row's settings or random numbers."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from omnibus_models.contract import TokenSamplingParams

#: Below this, sampling chooses what is best, and dividing by it what is no number.
MIN_TEMPERATURE = 1e-5


class Picker:
    """The choices of one request: its settings, its own random numbers and, for a penalty, what it has seen.

    With a ``script`` there is nothing to choose: those are its tokens, in order.
    """

    def __init__(
        self, settings: TokenSamplingParams, vocabulary: int, history: Iterable[int] = (), script: Sequence[int] = ()
    ) -> None:
        self.settings = settings
        self._script = deque(script)
        # The generator lives on the CPU, so that a seed means the same draws on every device.
        self._generator = torch.Generator().manual_seed(settings.seed % 2**63)
        self._seen: Tensor | None = None
        if settings.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocabulary, dtype=torch.bool)
            self._seen[[token for token in history if token < vocabulary]] = True

    @property
    def is_greedy(self) -> bool:
        return self.settings.temperature < MIN_TEMPERATURE or bool(self._script)

    def apply_script(self, token: int) -> int:
        """The next token of the script, or ``token`` without one."""
        return self._script.popleft() if self._script else token

    def draw_number(self) -> float:
        """The next random number, uniform in [0, 1)."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))

    def resume_after(self, token: int) -> None:
        """Stand as after the choice of ``token``, which was made elsewhere with the same settings."""
        if not self.is_greedy:
            self.draw_number()
        self.record_token(self.apply_script(token))

    def record_token(self, token: int) -> None:
        """Remember a chosen token for the repetition penalty."""
        if self._seen is not None:
            self._seen[token] = True

    def apply_penalty(self, logits: Tensor) -> Tensor:
        """Weaken tokens that were seen: [V] to [V] (Keskar et al. 2019, CTRL, section 4.1)."""
        if self._seen is None:
            return logits
        penalty = self.settings.repetition_penalty
        weaker = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(self._seen.to(logits.device), weaker, logits)


def choose_tokens(logits: Tensor, pickers: Sequence[Picker]) -> list[int]:
    """One token for each row of ``logits`` (float32 [B, V])."""
    if any(picker.settings.repetition_penalty != 1.0 for picker in pickers):
        logits = torch.stack([picker.apply_penalty(row) for picker, row in zip(pickers, logits, strict=True)])
    tokens: list[int] = logits.argmax(-1).tolist()
    for top_k, rows in _rows_by_top_k(pickers).items():
        drawn = _sample_rows(logits[rows], top_k, [pickers[row] for row in rows])
        for row, token in zip(rows, drawn, strict=True):
            tokens[row] = token
    tokens = [picker.apply_script(token) for picker, token in zip(pickers, tokens, strict=True)]
    for picker, token in zip(pickers, tokens, strict=True):
        picker.record_token(token)
    return tokens


def _rows_by_top_k(pickers: Sequence[Picker]) -> dict[int, list[int]]:
    # Rows are grouped by their own top_k alone: company never changes the way a row is computed.
    groups: dict[int, list[int]] = defaultdict(list)
    for row, picker in enumerate(pickers):
        if not picker.is_greedy:
            groups[picker.settings.top_k].append(row)
    return groups


def _sample_rows(logits: Tensor, top_k: int, pickers: Sequence[Picker]) -> list[int]:
    """Temperature, top-k, then nucleus (Holtzman et al. 2020), then the inverse of the cumulative distribution."""
    temperatures = _as_column([picker.settings.temperature for picker in pickers], logits)
    width = min(top_k, logits.shape[-1]) if top_k else logits.shape[-1]
    best, ids = torch.topk(logits / temperatures, width, dim=-1)
    chances = best.softmax(-1)
    before = chances.cumsum(-1) - chances
    beyond = before >= _as_column([picker.settings.top_p for picker in pickers], logits)
    beyond[:, 0] = False  # the best one is always left, however small a share is wanted
    chances = chances.masked_fill(beyond, 0.0)
    sums = chances.cumsum(-1)
    targets = _as_column([picker.draw_number() for picker in pickers], logits) * sums[:, -1:]
    last = (chances > 0).sum(-1, keepdim=True) - 1
    places = torch.minimum(torch.searchsorted(sums, targets, right=True), last)
    drawn: list[int] = ids.gather(-1, places)[:, 0].tolist()
    return drawn


def _as_column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
