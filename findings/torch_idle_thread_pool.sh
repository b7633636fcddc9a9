#!/usr/bin/env bash
# torch 2.13.0 (CPU, Linux, GNU's OpenMP), on a machine with as many threads as cores.
# One would guess: a thread that waits for work costs the others nothing.
# What happens: each thread that computes in parallel gets helpers of its own, which stay. When there are more of them in the
# process than cores, helpers sleep after each operation instead of waiting awake, also those of a thread that computes alone.
# Its operations are slower until the idle thread ends, or releases its helpers with `omp_pause_resource_all`.
# Seen with two cores: 1.1 to 1.3 times the time for small products; language models decoded 1.5 times as slowly.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import ctypes
import os
import statistics
import sys
import threading
import time

import torch

CORES = len(os.sched_getaffinity(0))
if CORES < 2:
    sys.exit("needs two cores")
torch.set_num_threads(CORES)
weights, rows = [torch.randn(1536, 576) for _ in range(60)], torch.randn(8, 576)
openmp = ctypes.CDLL(torch._C.__file__)
waits, ends = threading.Event(), threading.Event()


def seconds() -> float:
    samples = []
    for _ in range(25):
        begin = time.perf_counter()
        for weight in weights * 3:
            torch.nn.functional.linear(rows, weight)
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples[5:])


def compute_once(pause: bool) -> None:
    torch.set_num_threads(CORES)
    torch.randn(2000, 2000) @ torch.randn(2000, 2000)
    if pause:
        openmp.omp_pause_resource_all(1)
    waits.set()
    ends.wait()


ratios: dict[bool, list[float]] = {False: [], True: []}
for _ in range(5):
    for pause, results in ratios.items():
        alone = seconds()
        other = threading.Thread(target=compute_once, args=(pause,))
        other.start()
        waits.wait()
        time.sleep(0.5)
        results.append(seconds() / alone)
        ends.set()
        other.join()
        waits.clear()
        ends.clear()
idle, paused = (statistics.median(results) for results in ratios.values())
print(f"time of small products beside an idle thread, over that alone: {idle:.2f}; if it has released its helpers: {paused:.2f}")
sys.exit(0 if idle > 1.05 and paused < idle - 0.05 else 1)
PYTHON
