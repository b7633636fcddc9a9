"""The page of sizing, from the measured figures."""

from omnibus.cli.format.tables import size_text
from omnibus.reference.sizing import MIB, Measurements, read_measurements

HEAD = """# Sizing

`omnibus size KIND=REQ/S ...` computes what a workload needs, from the figures below:

```
omnibus size chat-stream=50 chat-image=5 speech=2 --seconds 4 --keep-days 30
```

The figures are what **Omnibus itself** takes for one request: engines are simulated and compute nothing, so that executors
have the loop around them alone. What a model takes, its GPUs and its weights, `omnibus profile` measures
([profiling.md](profiling.md)), and the planner counts ([planner.md](planner.md)). Tensors are as wide as those of a model of 7B
parameters (3584 numbers of 16 bits), a token for a KiB of an image, 25 for a second of sound.

- **CPU** is that of all services and executors, one request after the other on a machine that is not idle otherwise: under load
  several share messages, and each takes less. `omnibus size` adds room for bursts: 60 % of what it names is in use on average. A
  gateway uses one core; it names as many as are needed.
- **Arena** is the most that a request holds at any time, its media and the tensors between stages. The need is that times the
  requests at a time, rate times `--seconds`; add `--tensor-mib` for models that exchange more.
- **Bus** counts bytes into NATS and out of it, **disk** those of the streams of records, with `OMNIBUS_GATEWAY_RECORD` at its
  default; they are kept for `OMNIBUS_BUS_RECORD_SECONDS`, a day by default, which `--keep-days` stands for.
- Figures scale with what a request brings: an answer of more tokens takes more of the bus and of the CPU, a larger image more of the
  arena. For your own requests measure: `python -m tests.bench.sizing` is the program that made these.
"""


def page() -> str:
    measured = read_measurements()
    return "\n".join(
        [HEAD, f"Measured on {measured.machine}, {measured.requests} requests of each kind.", "", *_kind_rows(measured),
         "", "CPU milliseconds of a request by service:", "", *_cpu_rows(measured), "", *_memory_rows(measured), ""]
    )  # fmt: skip


def _kind_rows(measured: Measurements) -> list[str]:
    rows = ["| kind | what | CPU | arena | bus | disk |", "|---|---|---|---|---|---|"]
    for name, cost in measured.kinds.items():
        sizes = [size_text(nbytes) for nbytes in (cost.arena_bytes, cost.bus_bytes, cost.disk_bytes)]
        rows.append(f"| `{name}` | {cost.what} | {sum(cost.cpu_ms.values()):.1f} ms | {' | '.join(sizes)} |")
    return rows


def _cpu_rows(measured: Measurements) -> list[str]:
    services = list(dict.fromkeys(name for cost in measured.kinds.values() for name in cost.cpu_ms))
    rows = [f"| kind | {' | '.join(services)} |", "|---" * (len(services) + 1) + "|"]
    for name, cost in measured.kinds.items():
        cells = [f"{cost.cpu_ms[service]:.2f}" if service in cost.cpu_ms else "" for service in services]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return rows


def _memory_rows(measured: Measurements) -> list[str]:
    found = ", ".join(f"{name} {size_text(mib * MIB)}" for name, mib in measured.memory_mib.items())
    return [
        f"Resident memory without the arena: {found}; an executor is one without weights and without PyTorch.",
        f"Without requests all services take {measured.idle_cpu_ms:.0f} ms of CPU in a second together.",
    ]
