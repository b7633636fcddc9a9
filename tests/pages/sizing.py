"""The sizing page, written from the measured figures."""

from omnibus.cli.format.tables import size_text
from omnibus.reference.sizing import MIB, Measurements, read_measurements

HEAD = """# Sizing

`omnibus size KIND=REQ/S ...` computes the resources for a workload from the figures below:

```
omnibus size chat-stream=50 chat-image=5 speech=2 --seconds 4 --keep-days 30
```

The figures are the cost of **Omnibus itself** per request, with simulated engines that compute nothing. For the cost of a model,
its GPUs and weights use `omnibus profile` ([profiling](models.md#profiling)) and the planner ([planner.md](planner.md)).
Tensors have the width of a 7B model (3584 numbers of 16 bits), with one token per KiB of an image and 25 per second
of audio.

- **CPU** covers all services and executors, one request at a time on an otherwise idle machine. Under load a request costs less,
  because requests share messages. `omnibus size` adds room for bursts, so average use is 60 % of its result. A gateway
  uses one core; the result includes the number of gateways.
- **Arena** is the peak memory of one request: its media and the tensors between stages. Multiply it by concurrent requests, which is
  rate times `--seconds`. Add `--tensor-mib` for models that exchange more.
- **Bus** counts bytes into and out of NATS. **Disk** counts records, with the default `OMNIBUS_GATEWAY_RECORD`. They are kept for
  `OMNIBUS_BUS_RECORD_SECONDS`, a day by default; `--keep-days` sets this for the calculation.
- Longer answers need more bus and CPU, larger images more arena. Measure your own requests with `python -m tests.bench.sizing`,
  which produced these figures.
"""


def page() -> str:
    measured = read_measurements()
    return "\n".join(
        [HEAD, f"Measured on {measured.machine}, {measured.requests} requests of each kind.", "", *_kind_rows(measured),
         "", "CPU of a request by service, in milliseconds:", "", *_cpu_rows(measured), "", *_memory_rows(measured), ""]
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
        f"Resident memory without the arena: {found}; the executor has no weights and no PyTorch.",
        f"All services together use {measured.idle_cpu_ms:.0f} ms of CPU per second when idle.",
    ]
