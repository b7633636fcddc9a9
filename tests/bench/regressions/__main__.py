"""Try 21 regressions and 20 harmless changes: ``python -m tests.bench.regressions [WORDS]``.

A system of tiny models serves users' requests, each of which is compared (``--mirror 1``). The benchmark prints how
many regressions the gate caught, how many harmless changes it stopped, and for how many regressions it named the right
stage. For regressions that change outputs, it also prints how often ``omnibus bisect`` named the right executors. With
words, only cases whose names contain one of them run.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from omnibus_models import tiny
from tests.bench.regressions.cases import HARMLESS, REGRESSIONS
from tests.bench.regressions.report import count_outcomes, try_cases
from tests.bench.regressions.trial import run_system

if __name__ == "__main__":
    words = sys.argv[1:]
    chosen = [each for each in (*REGRESSIONS, *HARMLESS) if not words or any(word in each.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="omnibus-regressions-") as made:
        directory = Path(made)
        checkpoint = tiny.build("qwen2_5_vl", directory / "checkpoint")
        with run_system(directory, checkpoint) as system:
            outcomes = asyncio.run(try_cases(chosen, system, checkpoint, directory))
        print(json.dumps(count_outcomes(outcomes)))
