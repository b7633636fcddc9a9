"""Energy of an executor's device, divided over its engines' computing seconds.

While an engine computes, its device draws the mean power between two meter readings: joules over seconds. Idle seconds
are not charged. The charges of all requests therefore add up to the metered energy times the busy part of the time.
Components that compute at the same time share the energy. All processes of a machine use its processors, so an executor
is charged by its own part of the CPU time.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from math import exp

import msgspec

from omnibus.bus.messages import Hop
from omnibus.executor.energy_meters import EnergyMeter
from omnibus.metrics import EXECUTOR

log = logging.getLogger(__name__)

#: Seconds between two readings.
READ_SECONDS = 1.0
#: Seconds of computing over which the joules per second are averaged.
AVERAGE_SECONDS = 10.0


class EnergyBill:
    """Charges the joules of ``meter``; ``busy`` returns the seconds computed by the engines of all components."""

    def __init__(
        self,
        meter: EnergyMeter,
        busy: Callable[[], float],
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._meter: EnergyMeter | None = meter
        self._busy = busy
        self._now = now
        self._cpu = cpu
        self._cpus = os.cpu_count() or 1
        self._last = (now(), meter.read_joules(), busy(), cpu())
        self._charged = (0.0, 0.0)  # joules and seconds, older ones with less weight

    async def follow_meter(self) -> None:
        """Read the meter once a second, in a thread: reading a GPU's takes milliseconds, and may hang."""
        while self._meter is not None:
            await asyncio.sleep(READ_SECONDS)
            await asyncio.to_thread(self.update)

    def update(self) -> None:
        """Read the meter. After an error it is not read again."""
        began, before, busy_before, cpu_before = self._last
        if self._meter is None:
            return
        try:
            self._last = now, joules, busy, cpu = self._now(), self._meter.read_joules(), self._busy(), self._cpu()
        except (OSError, ValueError) as error:
            log.warning("energy is no longer measured: %s", error)
            self._meter, self._charged = None, (0.0, 0.0)
            return
        wall_seconds, compute_seconds = now - began, busy - busy_before
        if compute_seconds <= 0 or wall_seconds <= 0:
            return
        part = min(1.0, compute_seconds / wall_seconds)
        if self._meter.of_machine:
            part = min(part, (cpu - cpu_before) / (self._cpus * wall_seconds))
        decay = exp(-compute_seconds / AVERAGE_SECONDS)
        older_joules, older_seconds = self._charged
        self._charged = (older_joules * decay + (joules - before) * part, older_seconds * decay + compute_seconds)

    def charge_hop(self, component: str, hop: Hop) -> Hop:
        """Return ``hop`` with its joules; unchanged if nothing has been measured yet."""
        total_joules, seconds = self._charged
        if not seconds:
            return hop
        joules = round(hop.computed * total_joules / seconds, 6)
        EXECUTOR.energy.labels(component).inc(joules)
        return msgspec.structs.replace(hop, joules=joules)
