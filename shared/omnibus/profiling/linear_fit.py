"""Seconds of a component as a line over a request's quantities: a ``base`` and seconds ``per`` token."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from omnibus.profile import CostLine
from omnibus.profiling.measured_model import SPEECH, Subject

#: Unknowns of a line at most, its base included.
MAX_UNKNOWNS = 3
#: Quantities that differ by less than this part of their largest are ignored.
MIN_SPREAD = 0.05


def solve_nonnegative(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares without negative unknowns: ``rows`` [n, k] float, ``target`` [n] float, the result [k].

    Exact: of all choices of unknowns that are not zero, the best whose solution has no negative one.
    """
    count = rows.shape[1]
    best, left = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for some in combinations(range(count), size):
            part = rows[:, some]
            solution = np.linalg.lstsq(part, target, rcond=None)[0]
            error = part @ solution - target
            if (solution >= 0).all() and float(error @ error) < left * (1 - 1e-9):
                best, left = np.zeros(count), float(error @ error)
                best[list(some)] = solution
    return best


def fit_line(samples: Sequence[tuple[Mapping[str, float], float]], quantities: Sequence[str]) -> CostLine | None:
    """Return the line through ``samples``: quantities and seconds of requests.

    Returns None if they do not differ enough.
    """
    spread = (
        {name: _relative_spread([each.get(name, 0.0) for each, _ in samples]) for name in quantities} if samples else {}
    )
    names = sorted((name for name, width in spread.items() if width >= MIN_SPREAD), key=lambda name: -spread[name])
    names = names[: min(MAX_UNKNOWNS, len(samples)) - 1] if len(samples) > 1 else []
    if not names:
        return None
    rows = np.array([[1.0, *(each.get(name, 0.0) for name in names)] for each, _ in samples])
    scale = rows.max(axis=0)
    coefficients = solve_nonnegative(rows / scale, np.array([seconds for _, seconds in samples])) / scale
    per = {name: float(value) for name, value in zip(names, coefficients[1:], strict=True) if value > 0}
    return CostLine(base=float(coefficients[0]), per=per) if per else None


def quantity_names(subject: Subject, component: str) -> tuple[str, ...]:
    """Return the quantities that the seconds of ``component`` may depend on."""
    read = tuple(f"{modality}_tokens" for modality, part in subject.encoders.items() if part == component)
    if read:
        return read
    return ("speech_seconds",) if component in SPEECH else ("prompt_tokens", "completion_tokens")


def _relative_spread(values: Sequence[float]) -> float:
    top = max(values)
    return (top - min(values)) / top if top > 0 else 0.0
