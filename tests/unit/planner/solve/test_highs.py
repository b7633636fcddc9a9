"""Silencing the solver: none of its output appears, and all other output does."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from scipy import sparse

from omnibus.errors import DeadlineExceeded
from omnibus_planner.solve import highs
from omnibus_planner.solve.highs import Deadline, Program

CHATTER = """
import ctypes, os, sys
from omnibus_planner.solve import highs
c = ctypes.CDLL(None)
print("before", flush=True)
with highs.silence_stdout():
    c.puts(b"HighsMipSolverData::transformNewIntegerFeasibleSolution")
    with highs.silence_stdout():
        os.write(1, b"nested")
    os.write(1, b"still inside")
print("after", flush=True)
"""


def make_knapsack(values, weights, room):
    count = len(values)
    return Program(
        sparse.csc_array(np.array([weights], float)), np.array([-np.inf]), np.array([float(room)]),
        np.zeros(count), np.ones(count), np.ones(count),
    )  # fmt: skip


def test_what_the_c_library_holds_back_is_dropped_too():
    # Standard output is a pipe here, where the C library writes at the end of the process.
    process = subprocess.run([sys.executable, "-c", CHATTER], capture_output=True, text=True, timeout=60, check=True)

    assert process.stdout == "before\nafter\n"


def test_a_closed_standard_output_does_no_harm():
    code = f"import os\nos.close(1)\n{CHATTER}".replace("print(", "str(")

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert process.returncode != 0 or process.stderr == ""
    assert "OSError: [Errno 9]" not in process.stderr or "os.write" in process.stderr


def test_silence_over_threads_ends_with_the_last_of_them():
    ready, go = threading.Barrier(3), threading.Event()

    def wait_silently():
        with highs.silence_stdout():
            ready.wait(10)
            go.wait(10)

    workers = [threading.Thread(target=wait_silently) for _ in range(2)]
    before = os.fstat(1)
    for worker in workers:
        worker.start()
    ready.wait(10)
    inside = os.fstat(1)
    go.set()
    for worker in workers:
        worker.join()

    assert (inside.st_dev, inside.st_ino) == (os.stat(os.devnull).st_dev, os.stat(os.devnull).st_ino)
    assert (os.fstat(1).st_dev, os.fstat(1).st_ino) == (before.st_dev, before.st_ino)


def test_a_program_is_solved_without_a_gap():
    program = make_knapsack([6, 5, 5], [3, 2, 2], 4)

    solution = highs.solve_milp(program, -np.array([6.0, 5.0, 5.0]), Deadline(10))

    assert solution.value == pytest.approx(-10)
    assert solution.proven


def test_what_cannot_be_is_none():
    program = make_knapsack([1], [1], 1).with_rows(sparse.csc_array(np.array([[1.0]])), 2.0, np.inf)

    assert highs.solve_milp(program, np.zeros(1), Deadline(10)) is None


def test_a_deadline_that_has_passed_is_said():
    with pytest.raises(DeadlineExceeded, match="within -1 s"):
        highs.solve_milp(make_knapsack([1], [1], 1), np.zeros(1), Deadline(-1))


def make_hard_program():
    """Return a program that takes more branches than a few, and its cost."""
    dice = np.random.default_rng(1)
    weights = dice.integers(1, 100, (20, 40)).astype(float)
    program = Program(
        sparse.csc_array(weights), np.full(20, -np.inf), weights.sum(axis=1) // 3,
        np.zeros(40), np.ones(40), np.ones(40),
    )  # fmt: skip
    return program, -dice.integers(50, 100, 40).astype(float)


def test_a_search_ends_after_its_branches_with_what_it_found():
    program, cost = make_hard_program()

    first, again = (highs.solve_milp(program, cost, Deadline(60), branches=5) for _ in range(2))

    assert not first.proven
    assert first.bound < first.value
    assert again.value == first.value
    assert list(again.x) == list(first.x)
