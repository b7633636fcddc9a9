"""Meters of the energy that this machine's devices use, where there are any.

A GPU of NVIDIA counts it (NVML's ``nvmlDeviceGetTotalEnergyConsumption``, from Volta on). Processors of Intel and AMD
do (RAPL), and Linux shows it below ``/sys/class/powercap``, on most systems to root alone.
"""

import ctypes
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

POWERCAP = Path("/sys/class/powercap")
#: Zones of processors, and their zones of memory; what else there is below is part of a processor, or has it as a part.
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
_COUNTED_ZONES = re.compile(r"package-.*|dram")
_MICROJOULES, _MILLIJOULES = 1e-6, 1e-3


class EnergyMeter(Protocol):
    """Energy of some devices. ``of_machine``: they compute for all processes of the machine, not for one alone."""

    of_machine: bool

    def read_joules(self) -> float:
        """Joules that they have used since the meter was opened. Raises ``OSError``."""


class RaplMeter:
    """The processors and the memory of this machine, by counters that wrap around."""

    of_machine = True

    def __init__(self, zones: Sequence[Path]) -> None:
        """``zones`` are directories with ``energy_uj`` and ``max_energy_range_uj``. Raises ``OSError``."""
        self._ranges = {zone: _read_number(zone / "max_energy_range_uj") for zone in zones}
        self._last = {zone: _read_number(zone / "energy_uj") for zone in zones}
        self._joules = 0.0

    def read_joules(self) -> float:
        for zone, before in self._last.items():
            now = self._last[zone] = _read_number(zone / "energy_uj")
            used = now - before if now >= before else now - before + self._ranges[zone]
            self._joules += used * _MICROJOULES
        return self._joules


class NvmlMeter:
    """GPUs that ``nvml``, the library, knows by ``handles``."""

    of_machine = False

    def __init__(self, nvml: ctypes.CDLL, handles: Sequence[ctypes.c_void_p]) -> None:
        """Raises ``OSError`` for one that does not count."""
        self._nvml = nvml
        self._handles = handles
        self._begin = self._read_counters()

    def read_joules(self) -> float:
        return (self._read_counters() - self._begin) * _MILLIJOULES

    def _read_counters(self) -> int:
        found = ctypes.c_ulonglong()
        total = 0
        for handle in self._handles:
            _check(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(found)))
            total += found.value
        return total


def open_meter(device: str, gpus: int = 1, root: Path = POWERCAP) -> EnergyMeter | None:
    """The meter of ``device``, a name of torch's, and of the ``gpus`` - 1 after it; None where there is none."""
    try:
        return _open_nvml(device, gpus) if device.startswith("cuda") else RaplMeter(find_zones(root))
    except (OSError, ValueError, AttributeError) as error:
        log.info("the energy of %s is not measured: %s", device, error)
        return None


def find_zones(root: Path) -> list[Path]:
    """The zones below ``root`` that are counted. Raises ``OSError`` if there is none."""
    found = [
        zone
        for zone in sorted(root.iterdir())
        if _ZONE.fullmatch(zone.name) and _COUNTED_ZONES.fullmatch((zone / "name").read_text().strip())
    ]
    if not found:
        raise FileNotFoundError(f"no processor counts below {root}")
    return found


def visible_gpus(device: str, gpus: int, visible: str) -> list[str]:
    """The numbers or UUIDs, for the driver, of ``device`` and those after it; ``visible`` is CUDA_VISIBLE_DEVICES."""
    first = int(device.partition(":")[2] or 0)
    known = [name.strip() for name in visible.split(",") if name.strip()] or [str(n) for n in range(first + gpus)]
    return known[first : first + gpus]


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
        raise OSError(f"NVML answers {code}")


def _read_number(file: Path) -> int:
    return int(file.read_text())
