"""``omnibus usage``: GPU-seconds and money of recorded requests, by tenant and model."""

import argparse
import time

from omnibus.cli.format.tables import size_text, table_lines
from omnibus.cli.invocations import connect_bus
from omnibus.cli.output import print_json
from omnibus.recording.usage_sums import UsageSum, sum_usage

_HOUR_SECONDS = 3600.0


async def show_usage(options: argparse.Namespace) -> int:
    """Print the sums of the last ``options.since`` hours."""
    bus = await connect_bus(options)
    try:
        sums = await sum_usage(bus, time.time() - options.since * _HOUR_SECONDS)
    finally:
        await bus.drain()
    if options.json:
        print_json(sums)
    else:
        print("\n".join(usage_table(sums)))
    return 0


def usage_table(sums: list[UsageSum]) -> list[str]:
    """Return the rows by tenant and model. "-" stands for requests without a tenant."""
    if not sums:
        return ["no request has ended in that time, or its record has left"]
    rows = [
        [
            one.tenant or "-",
            one.model or "-",
            str(one.requests),
            f"{one.gpu_seconds:.3f}",
            size_text(one.nbytes),
            f"{one.money:.6f} {one.currency}" if one.currency else "-",
        ]
        for one in sums
    ]
    return list(table_lines(["TENANT", "MODEL", "REQUESTS", "GPU-SECONDS", "BETWEEN NODES", "MONEY"], rows))
