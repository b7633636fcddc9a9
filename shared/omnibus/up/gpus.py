"""GPUs of this machine, as NVIDIA's management library lists them."""

import ctypes
import os
import re
from typing import NamedTuple

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
_MODEL = re.compile(r"[A-Z]*\d+\w*")


class MachineGpus(NamedTuple):
    """GPUs that executors may use: their type, the values for CUDA_VISIBLE_DEVICES, and GB of memory of each."""

    kind: str = ""
    devices: tuple[str, ...] = ()
    memory_gb: float = 0.0


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def find_gpus() -> MachineGpus:
    """Return the GPUs of this process. These are the ones in CUDA_VISIBLE_DEVICES, or all; none without a driver."""
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        return MachineGpus()
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
        return MachineGpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",") if name.strip()] if visible is not None else None
    devices = tuple(map(str, range(count.value)) if names is None else names)
    kind, memory_gb = _describe_first(nvml)
    return MachineGpus(kind, devices, memory_gb) if devices else MachineGpus()


def gpu_kind(product: str) -> str:
    """Return the type in a product's name: ``H100`` for "NVIDIA H100 80GB HBM3"."""
    found = _MODEL.search(product)
    return found[0] if found else product


def _describe_first(nvml: ctypes.CDLL) -> tuple[str, float]:
    """Return type and GB of the first GPU. All GPUs of a machine count as equal."""
    handle, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES), _Memory()
    if nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
        return "gpu", 0.0
    nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES)
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return gpu_kind(name.value.decode(errors="replace")), memory.total / 1e9
