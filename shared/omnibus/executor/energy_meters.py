"""Energy meters of this machine's devices.

NVIDIA GPUs from Volta on count their energy (NVML's ``nvmlDeviceGetTotalEnergyConsumption``). Intel and AMD processors
also do (RAPL). Linux shows their counters below ``/sys/class/powercap``, on most systems to root alone.
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
