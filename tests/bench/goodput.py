"""Goodput of simulated executors on eight GPUs: stage schedule, planned shape, cost of slots.

    python -m tests.bench.goodput
    python -m tests.bench.goodput table     # the planned shape next to all that TriInfer's search lists, by goals

The model, its goals and the shapes are those of the lab (``tests.lab.goodput``).
"""

import json
import sys

from tests.bench.cases import SHAPED, SLOTS, STAGED
from tests.lab.goodput import best_listed, chosen_method, planned
from tests.lab.staged_cluster import ALL, NAIVE, TABLE_5, TEXTCAPS, goodput, monolith


def measure_goodput() -> dict[str, float]:
    """Measure the gains of schedule and planned shape, and slot costs."""
    naive = goodput(monolith(NAIVE))
    by_slots = {slots: goodput(monolith(ALL), TEXTCAPS._replace(slots=slots)) for slots in (32, 128, 256)}
    print({f"goodput.staged.slots{slots}": round(rate, 4) for slots, rate in by_slots.items()}, file=sys.stderr)
    staged_rate, (_, best) = by_slots[32], planned()
    return {
        STAGED: round(staged_rate / naive, 4),
        SHAPED: round(best / staged_rate, 4),
        SLOTS: round(by_slots[256] / staged_rate, 4),
    }


def print_table() -> None:
    """Print the planned shape of each setting, and TriInfer's: best of its search, Algorithm 2."""
    for setting in TABLE_5:
        shape, rate = planned(setting)
        best_shape, most = best_listed(setting)
        name, replicas, heuristic = chosen_method(setting)
        print(
            f"TTFT {setting.ttft:g} s, TBT {setting.tbt:g} s: planned {shape.replicas} {rate:.2f}, "
            f"best listed {best_shape} {most:.2f}, Algorithm 2 {name} {replicas} {heuristic:.2f} req/s per GPU",
            flush=True,
        )


if __name__ == "__main__":
    if "table" in sys.argv[1:]:
        print_table()
    else:
        print(json.dumps(measure_goodput()))
