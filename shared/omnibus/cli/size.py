"""``omnibus size``: CPU, memory, arena, disk and bytes on the bus that a workload needs, from measurements."""

import argparse
from collections.abc import Iterator
from math import isfinite
from typing import Any

from omnibus.cli.format.tables import field_lines, size_text, table_lines, text_lines
from omnibus.cli.output import add_output_options, print_json
from omnibus.errors import BadRequest
from omnibus.reference.sizing import MIB, Measurements, Sizing, compute_sizing, read_measurements


def add_size_command(commands: Any) -> None:
    """Add ``size`` to the commands of ``omnibus``."""
    size = commands.add_parser("size", help="CPU, memory, arena, disk and bytes on the bus that a workload needs")
    size.add_argument(
        "workload",
        nargs="*",
        metavar="KIND=REQ/S",
        help="requests per second by kind (default: list the kinds and their costs)",
    )
    size.add_argument(
        "--seconds", type=float, default=5.0, help="that a request takes, by the goal or the profile (default 5)"
    )
    size.add_argument("--keep-days", type=float, default=1.0, metavar="DAYS", help="that records are kept (default 1)")
    size.add_argument(
        "--tensor-mib", type=float, default=0.0, metavar="MIB",
        help="of tensors per request, on top of those of a 7B model (default 0)",
    )  # fmt: skip
    add_output_options(size)


async def print_size(options: argparse.Namespace) -> int:
    """Print the needs of a workload, or the costs of each kind. Raises ``BadRequest``."""
    measurements = read_measurements()
    if not options.workload:
        if options.json:
            print_json(measurements)
        else:
            print("\n".join([*kind_lines(measurements), "", f"Measured on {measurements.machine}."]))
        return 0
    for name in ("seconds", "keep_days", "tensor_mib"):
        if not (isfinite(getattr(options, name)) and getattr(options, name) >= 0):
            raise BadRequest(f"--{name.replace('_', '-')} must be 0 or more")
    rates = dict(map(_parse_rate, options.workload))
    needs = compute_sizing(
        rates, measurements, seconds=options.seconds, keep_days=options.keep_days, tensor_mib=options.tensor_mib
    )
    if options.json:
        print_json(needs)
    else:
        print("\n".join(sizing_lines(needs, rates, options.keep_days)))
    return 0


def kind_lines(measurements: Measurements) -> Iterator[str]:
    """Yield a table of the costs of one request of each kind."""
    head = ["KIND", "CPU MS", "OF GATEWAY", "ARENA", "BUS", "DISK", "WHAT"]
    rows = [
        [
            name,
            f"{sum(cost.cpu_ms.values()):.1f}",
            f"{cost.cpu_ms.get('gateway', 0):.1f}",
            *(size_text(nbytes) for nbytes in (cost.arena_bytes, cost.bus_bytes, cost.disk_bytes)),
            cost.what,
        ]
        for name, cost in measurements.kinds.items()
    ]
    yield from table_lines(head, rows)


def sizing_lines(needs: Sizing, rates: dict[str, float], keep_days: float) -> Iterator[str]:
    """Yield the needs of a workload."""
    cores = ", ".join(f"{name} {busy:.2f}" for name, busy in needs.cores.items() if busy >= 0.005)
    yield from field_lines(
        {
            "workload": ", ".join(f"{rate:g} req/s of {kind}" for kind, rate in rates.items()),
            "CPU": f"{needs.total_cores:.1f} cores with room for bursts; busy: {cores or 'hardly'}",
            "gateways": f"{needs.gateways}, each one core at most",
            "memory": f"{size_text(needs.memory_mib * MIB)} for services; {size_text(needs.executor_mib * MIB)} and "
            "its weights for each executor",
            "arena": f"{size_text(needs.arena_mib * MIB)}: OMNIBUS_SIDECAR_ARENA_MIB={needs.arena_mib:.0f} or more, on "
            "one node",
            "disk": f"{size_text(needs.disk_mib * MIB)} for records of {keep_days:g} days",
            "bus": f"{size_text(needs.bus_mib_s * MIB)}/s",
        }
    )
    yield ""
    yield from text_lines(
        f"From figures measured on {needs.machine}; engines are not in them: `omnibus profile` measures those."
    )


def _parse_rate(text: str) -> tuple[str, float]:
    kind, equals, number = text.partition("=")
    try:
        rate = float(number)
    except ValueError:
        rate = -1.0
    if not equals or not (isfinite(rate) and rate > 0):
        raise BadRequest(f"{text!r} must be KIND=REQ/S, such as chat=20")
    return kind, rate
