"""Tokens per second on a CPU, against the build of another checkout.

    python -m tests.bench.over_before ../before

    laptop.tokens_over_before.c*     the engine ``llama_cpp`` by ``transformers`` of the build before
    transformers.cpu.c*_over_before  the engine ``transformers`` by that of the build before
    transformers.cpu.c*_int8_over_before  the same with integer weights

SmolLM2-135M-Instruct (``make install-weights``) runs on all cores, streamed and greedy: in Q4_1 by ``llama_cpp``, and its
float32 values by ``transformers``, which the build before reads as a directory of safetensors. Each round starts the
systems one after another, and the results are medians of the rounds.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.bench.laptop import send_round, start_omnibus

ROOT = Path(__file__).parents[2]

_ROUNDS, _REPEATS = 3, 1
_COUNTS = {1: 2, 4: 4, 8: 8}  # requests of a round by how many are sent at once
_RUN_WITHIN = 300.0  # seconds


async def measure_system(checkpoint: Path, engine: str, option: str) -> dict[int, float]:
    """Return tokens per second by the number of requests at once, of the code on ``PYTHONPATH``."""
    rates = {}
    async with start_omnibus(checkpoint, engine, **json.loads(option)) as port:
        for at_once, requests in _COUNTS.items():
            sent = [await send_round(port, at_once, requests, 1000 * number) for number in range(_REPEATS + 1)]
            rates[at_once] = statistics.median(rate for rate, _ in sent[1:])  # the first one warms up
    return rates


def run_tree(tree: Path, checkpoint: Path, engine: str, **option: object) -> dict[int, float]:
    """Run ``measure_system`` with the code of ``tree``."""
    packages = [tree / "shared", *sorted(each.parent for each in tree.glob("services/*/omnibus_*")), ROOT]
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, packages))}
    command = (sys.executable, "-m", "tests.bench.over_before", "--one", checkpoint, engine, json.dumps(option))
    output = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=environ, stdout=subprocess.PIPE, timeout=_RUN_WITHIN, check=True
    )
    return {int(at_once): rate for at_once, rate in json.loads(output.stdout).items()}


def save_float_checkpoint(file: Path, directory: Path) -> Path:
    """Save the dequantised weights of the GGUF ``file`` as float32 in ``directory``, and return it."""
    from omnibus_models.families import causal_lm  # noqa: I001 prepares torchvision for a CPU
    from omnibus_models import gguf_checkpoint, loading  # not in every build before

    loading.load_model(causal_lm.find_class(file), file).save_pretrained(directory)
    gguf_checkpoint.load_tokenizer(file).save_pretrained(directory)
    return directory


def measure_ratios(before: Path) -> dict[str, float]:
    """All values by name."""
    from omnibus.checkpoints.packaged import find_packaged  # not in every build before

    file = find_packaged("smollm2")
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        floats = save_float_checkpoint(file, Path(directory))
        for _ in range(_ROUNDS):
            base = run_tree(before, floats, "transformers")
            runs = {
                "laptop.tokens_over_before.c{}": run_tree(ROOT, file, "llama_cpp"),
                "transformers.cpu.c{}_over_before": run_tree(ROOT, floats, "transformers"),
                "transformers.cpu.c{}_int8_over_before": run_tree(ROOT, floats, "transformers", dtype="int8"),
            }
            print(base, *runs.values(), file=sys.stderr)
            for name, rates in runs.items():
                for at_once, rate in rates.items():
                    samples.setdefault(name.format(at_once), []).append(rate / base[at_once])
    return {name: round(statistics.median(values), 3) for name, values in samples.items()}


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        rates = uvloop.run(measure_system(Path(sys.argv[2]), *sys.argv[3:]))
        print(json.dumps(rates))
    else:
        print(json.dumps(measure_ratios(Path(sys.argv[1]).resolve())))
