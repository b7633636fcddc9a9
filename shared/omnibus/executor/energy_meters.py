"""Energy meters of this machine's devices.

NVIDIA GPUs from Volta on count their energy (NVML's ``nvmlDeviceGetTotalEnergyConsumption``). Intel and AMD processors
also do (RAPL). Linux shows their counters below ``/sys/class/powercap``, on most systems to root alone.

Energy of an executor's device, divided over its engines' computing seconds.

While an engine computes, its device draws the mean power between two meter readings: joules over seconds. Idle seconds
are not charged. The charges of all requests therefore add up to the metered energy times the busy part of the time.
Components that compute at the same time share the energy. All processes of a machine use its processors, so an executor
is charged by its own part of the CPU time.
"""

import asyncio
import ctypes
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import Protocol

import msgspec

from omnibus.bus.messages import Hop
from omnibus.metrics import EXECUTOR

log = logging.getLogger(__name__)

POWERCAP = Path("/sys/class/powercap")
#: Zones of processors, and their zones of memory; the other zones are parts of a processor, or contain one.
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
_COUNTED_ZONES = re.compile(r"package-.*|dram")
_MICROJOULES, _MILLIJOULES = 1e-6, 1e-3


class EnergyMeter(Protocol):
    """Energy of some devices. ``of_machine``: all processes of the machine use them, not one alone."""

    of_machine: bool

    def read_joules(self) -> float:
        """Return the joules used since the meter was opened. Raises ``OSError``."""


class RaplMeter:
    """Meter of this machine's processors and memory, whose counters wrap around."""

    of_machine = True

    def __init__(self, zones: Sequence[Path]) -> None:
        """``zones`` are directories with ``energy_uj`` and ``max_energy_range_uj``. Raises ``OSError``."""
        self._ranges = {zone: _read_number(zone / "max_energy_range_uj") for zone in zones}
        self._last = {zone: _read_number(zone / "energy_uj") for zone in zones}
        self._joules = 0.0

    def read_joules(self) -> float:
        for zone, before in self._last.items():
            now = self._last[zone] = _read_number(zone / "energy_uj")
            delta = now - before if now >= before else now - before + self._ranges[zone]
            self._joules += delta * _MICROJOULES
        return self._joules


class NvmlMeter:
    """Meter of the GPUs with ``handles`` in the library ``nvml``."""

    of_machine = False

    def __init__(self, nvml: ctypes.CDLL, handles: Sequence[ctypes.c_void_p]) -> None:
        """Open the counters. Raises ``OSError`` if a GPU does not count its energy."""
        self._nvml = nvml
        self._handles = handles
        self._begin = self._read_counters()

    def read_joules(self) -> float:
        return (self._read_counters() - self._begin) * _MILLIJOULES

    def _read_counters(self) -> int:
        energy = ctypes.c_ulonglong()
        total = 0
        for handle in self._handles:
            _check(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy)))
            total += energy.value
        return total


def open_meter(device: str, gpus: int = 1, root: Path = POWERCAP) -> EnergyMeter | None:
    """Return the meter of ``device`` and the ``gpus`` - 1 after it.

    ``device`` is a name of torch's. None if they have no meter.
    """
    try:
        return _open_nvml(device, gpus) if device.startswith("cuda") else RaplMeter(find_zones(root))
    except (OSError, ValueError, AttributeError) as error:
        log.info("the energy of %s is not measured: %s", device, error)
        return None


def find_zones(root: Path) -> list[Path]:
    """Return the counted zones below ``root``. Raises ``OSError`` if there are none."""
    zones = [
        zone
        for zone in sorted(root.iterdir())
        if _ZONE.fullmatch(zone.name) and _COUNTED_ZONES.fullmatch((zone / "name").read_text().strip())
    ]
    if not zones:
        raise FileNotFoundError(f"no processor has an energy counter below {root}")
    return zones


def visible_gpus(device: str, gpus: int, visible: str) -> list[str]:
    """Return the driver's numbers or UUIDs of ``gpus`` devices from ``device`` on.

    ``visible`` is CUDA_VISIBLE_DEVICES.
    """
    first = int(device.partition(":")[2] or 0)
    devices = [name.strip() for name in visible.split(",") if name.strip()] or [str(n) for n in range(first + gpus)]
    return devices[first : first + gpus]


def _open_nvml(device: str, gpus: int) -> NvmlMeter:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    _check(nvml.nvmlInit_v2())
    handles = []
    for name in visible_gpus(device, gpus, os.environ.get("CUDA_VISIBLE_DEVICES", "")):
        handle = ctypes.c_void_p()
        if name.isdecimal():
            _check(nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle)))
        else:
            _check(nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)))
        handles.append(handle)
    return NvmlMeter(nvml, handles)


def _check(code: int) -> None:
    if code:
        raise OSError(f"NVML returned the error {code}")


def _read_number(file: Path) -> int:
    return int(file.read_text())


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
