"""The only module that calls the HiGHS solver: mixed-integer and linear programs, with limits, in silence.

A search ends after a number of branches, so that a slow or busy machine finds the same answer. Deadlines are for
safety.

HiGHS prints its own lines on standard output, whichever options are set. They are discarded: during a solve, file
descriptor 1 of this process points to the null device.
"""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from omnibus.errors import DeadlineExceeded, Fatal

_LIMIT, _INFEASIBLE, _UNBOUNDED = 1, 2, 3  # scipy's status codes
#: HiGHS's status at the limit of branches, which scipy does not recognise.
_BRANCH_LIMIT_MESSAGE = "HiGHS Status 16"
#: Most branches of a program. One takes about 0.3 ms.
MAX_BRANCHES = 20_000
#: Seconds for a linear program, which takes milliseconds.
_LINEAR_TIMEOUT_SECONDS = 30.0
_fd_lock = threading.Lock()
_silent = 0
_stdout = -1
_c_library = ctypes.CDLL(None)
#: Returns freed memory to the system, in glibc. A search takes up to 30 KB per column, which would stay allocated and
#: add up over searches. It takes milliseconds, as long as a small program.
_trim_heap, _LARGE_COLUMNS = getattr(_c_library, "malloc_trim", None), 1000

#: Numbers, or flags, in one dimension.
Vector = np.ndarray[Any, np.dtype[Any]]


class Deadline:
    """Remaining seconds of a limit; several solves may share one. Each solve has at most ``branches``."""

    def __init__(self, within: float, branches: int = MAX_BRANCHES) -> None:
        self.within = within
        self.branches = branches
        self._end = time.monotonic() + within

    def remaining_seconds(self) -> float:
        """Return the remaining seconds. Raises ``DeadlineExceeded`` if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.exceeded_error()
        return left

    def exceeded_error(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"no deployment was found within {self.within:g} s: allow more, or name fewer options")


@dataclass(frozen=True)
class Program:
    """Rows ``low <= matrix @ x <= high`` and bounds ``lower <= x <= upper``; ``integer`` is 1 for whole x."""

    matrix: Any
    low: Vector
    high: Vector
    lower: Vector
    upper: Vector
    integer: Vector

    @property
    def column_count(self) -> int:
        return len(self.lower)

    def with_rows(self, matrix: Any, low: Vector | float, high: Vector | float) -> "Program":
        """Add rows over all columns."""
        count = matrix.shape[0]
        return replace(
            self,
            matrix=sparse.vstack([self.matrix, matrix], format="csc"),
            low=np.concatenate([self.low, np.broadcast_to(low, count)]),
            high=np.concatenate([self.high, np.broadcast_to(high, count)]),
        )

    def with_columns(self, count: int, upper: Vector | float, *, integer: bool) -> "Program":
        """Add ``count`` columns from 0 to ``upper`` that are in no row yet."""
        return Program(
            sparse.hstack([self.matrix, sparse.csc_array((self.matrix.shape[0], count))], format="csc"),
            self.low,
            self.high,
            np.concatenate([self.lower, np.zeros(count)]),
            np.concatenate([self.upper, np.broadcast_to(upper, count)]),
            np.concatenate([self.integer, np.full(count, float(integer))]),
        )


@dataclass(frozen=True)
class MilpSolution:
    """A solution. No other is below ``bound``; if ``proven``, none is better."""

    x: Vector
    value: float
    bound: float
    proven: bool


def solve_milp(
    program: Program, cost: Vector, deadline: Deadline, *, branches: int = MAX_BRANCHES
) -> MilpSolution | None:
    """Return the solution of least ``cost``, or None if there is none.

    The gap is 0. After ``branches`` (or those of ``deadline``), and at the deadline, it returns the best one so far,
    not proven. Raises ``DeadlineExceeded`` if there is none so far.
    """
    most = min(branches, deadline.branches)
    settings = {"mip_rel_gap": 0.0, "time_limit": deadline.remaining_seconds(), "node_limit": most}
    rows = LinearConstraint(program.matrix, program.low, program.high)
    bounds = Bounds(program.lower, program.upper)
    with silence_stdout():
        done = milp(cost, constraints=rows, bounds=bounds, integrality=program.integer, options=settings)
    at_limit = done.status == _LIMIT or _BRANCH_LIMIT_MESSAGE in done.message
    if not at_limit and done.status not in (0, _INFEASIBLE, _UNBOUNDED):
        with silence_stdout():  # presolve failed on numbers that it cannot handle
            settings |= {"presolve": False, "time_limit": deadline.remaining_seconds()}
            done = milp(cost, constraints=rows, bounds=bounds, integrality=program.integer, options=settings)
        at_limit = done.status == _LIMIT or _BRANCH_LIMIT_MESSAGE in done.message
    if program.column_count > _LARGE_COLUMNS and _trim_heap is not None:
        _trim_heap(0)
    if done.status == _INFEASIBLE:
        return None
    if done.x is None and at_limit:
        raise deadline.exceeded_error()
    if done.x is None:
        raise Fatal(f"the solver failed: {done.message}")
    bound = done.mip_dual_bound if done.mip_dual_bound is not None else done.fun
    return MilpSolution(done.x, float(done.fun), float(bound), done.status == 0)


@dataclass(frozen=True)
class LinearSolution:
    """A solution of a linear program.

    ``prices`` is the value of one more unit of each upper row, and ``waste`` is that of each column.
    """

    x: Vector
    value: float
    prices: Vector
    waste: Vector


def solve_linear(cost: Vector, most: Any, supply: Vector, same: Any, equal: Vector) -> LinearSolution:
    """Minimise ``cost @ x`` with ``most @ x <= supply``, ``same @ x == equal``, x >= 0, which must be feasible."""
    limit = {"time_limit": _LINEAR_TIMEOUT_SECONDS}
    with silence_stdout():
        done = linprog(
            cost, A_ub=most, b_ub=supply, A_eq=same, b_eq=equal, bounds=(0, None), method="highs-ds", options=limit
        )
    if done.status == _LIMIT:
        raise DeadlineExceeded(
            f"a linear program was not solved within {_LINEAR_TIMEOUT_SECONDS:g} s: name fewer options"
        )
    if done.status != 0:
        raise Fatal(f"the solver failed on a linear program: {done.message}")
    return LinearSolution(done.x, float(done.fun), -done.ineqlin.marginals, done.lower.marginals)


@contextmanager
def silence_stdout() -> Iterator[None]:
    """Discard the process's writes to file descriptor 1 within the context; contexts may nest, across threads too."""
    _mute_stdout()
    try:
        yield
    finally:
        _restore_stdout()


def _mute_stdout() -> None:
    global _silent, _stdout
    with _fd_lock:
        if _silent == 0:
            try:
                _stdout = os.dup(1)
            except OSError:  # closed, as in a daemon
                _stdout = -1
            else:
                _c_library.fflush(None)
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), 1)
        _silent += 1


def _restore_stdout() -> None:
    global _silent, _stdout
    with _fd_lock:
        _silent -= 1
        if _silent == 0 and _stdout >= 0:
            _c_library.fflush(None)  # it buffers lines if 1 is not a terminal
            os.dup2(_stdout, 1)
            os.close(_stdout)
            _stdout = -1
