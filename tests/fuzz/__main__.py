"""Fuzz for a given time: ``python -m tests.fuzz --minutes 60``.

A failure names the round's seed.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
_EXAMPLES = 4000  # of a cheap property in one round


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further round after so many")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the first round; then it counts")
    parser.add_argument("--examples", type=int, default=_EXAMPLES, help="of a cheap property in one round")
    parser.add_argument("-k", dest="words", default="", help="fuzz only tests whose names match, as pytest's -k")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    seed = options.seed
    while True:
        print(f"round with --seed {seed}", flush=True)
        if status := _run_round(seed, options.examples, options.words):
            print(f"failed: repeat it with  python -m tests.fuzz --minutes 0 --seed {seed} -k '<test>'")
            return status
        if time.monotonic() > end:
            return 0
        seed += 1


def _run_round(seed: int, examples: int, words: str) -> int:
    command = [sys.executable, "-m", "pytest", str(HERE), "-q", "-x", f"--hypothesis-seed={seed}"]
    command += ["-o", "timeout=3600", *(["-k", words] if words else [])]
    environ = {**os.environ, "FUZZ_EXAMPLES": str(examples)}
    return subprocess.run(command, env=environ, cwd=HERE.parents[1], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
