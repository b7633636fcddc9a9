"""The arena as memory that a GPU reads directly; one test needs a driver, the others use a fake."""

import numpy as np
import pytest
import torch

from omnibus.executor.settings import ExecutorSettings
from omnibus.tensors.memory import MemoryRange
from omnibus_engines.pinned_memory import pin_memory
from omnibus_models.device import copy_to_device
from tests.unit.sidecar.node import PATIENCE, connect_client, make_deadline, run_sidecar, wait_until

_PORTABLE, _PORTABLE_READ_ONLY = 1, 9
_REFUSED = 801  # cudaErrorNotSupported


class PlayedDriver:
    """A fake CUDA driver that keeps registrations, and refuses the ``refused`` flags."""

    def __init__(self, refused: int | None = None) -> None:
        self.registered: dict[int, tuple[int, int]] = {}
        self._refused = refused

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if flags == self._refused:
            return _REFUSED
        assert address not in self.registered
        self.registered[address] = (nbytes, flags)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


def install_driver(monkeypatch: pytest.MonkeyPatch, driver: PlayedDriver) -> None:
    def raise_error(code: int) -> None:
        if code:
            raise RuntimeError(f"CUDA error {code}")

    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "check_error", raise_error)


async def test_both_mappings_of_an_arena_are_registered_and_those_of_the_next_one(tmp_path, monkeypatch):
    driver = PlayedDriver()
    install_driver(monkeypatch, driver)
    async with run_sidecar(tmp_path):
        client = await connect_client(tmp_path)
        client.observe_mappings(pin_memory)
        await wait_until(lambda: len(driver.registered) == 2)
        view = client.view(await client.put(np.arange(10), invocation="i", deadline=make_deadline()))
        mappings = {flags: (address, nbytes) for address, (nbytes, flags) in driver.registered.items()}
    await wait_until(lambda: not client.connected)
    async with run_sidecar(tmp_path):
        await client.wait_ready(PATIENCE)
        other = client.view(await client.put(np.arange(10), invocation="i", deadline=make_deadline()))
        await wait_until(lambda: len(driver.registered) == 2 and holds_array(driver, other))

    address, nbytes = mappings[_PORTABLE_READ_ONLY]
    assert address <= view.ctypes.data < address + nbytes
    assert mappings[_PORTABLE][1] == nbytes
    await client.close()
    assert driver.registered == {}


def holds_array(driver: PlayedDriver, array: np.ndarray) -> bool:
    """Return True if ``array`` lies in registered memory."""
    return any(at <= array.ctypes.data < at + nbytes for at, (nbytes, _) in driver.registered.items())


def test_what_the_driver_refuses_is_said_and_not_undone(monkeypatch, caplog):
    driver = PlayedDriver(refused=_PORTABLE_READ_ONLY)
    install_driver(monkeypatch, driver)

    undo = pin_memory([MemoryRange(1 << 20, 4096, is_writable=True), MemoryRange(2 << 20, 4096, is_writable=False)])
    undo()

    assert driver.registered == {}
    assert "cannot be pinned" in caplog.text
    assert "801" in caplog.text


def test_arrays_are_converted_on_their_device():
    arrays = [np.ones((2, 3), "float32"), np.full((1, 3), 2.5, "float32")]

    copies = copy_to_device(arrays, torch.device("cpu"), torch.bfloat16)

    assert [each.dtype for each in copies] == [torch.bfloat16] * 2
    assert [each.float().numpy().tolist() for each in copies] == [array.tolist() for array in arrays]
    assert copy_to_device([], torch.device("cpu"), torch.float32) == []


def test_executors_pin_only_where_that_is_set():
    assert not ExecutorSettings().pin_arena


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
async def test_a_gpu_reads_the_arena_as_pinned_memory(tmp_path):
    async with run_sidecar(tmp_path), await connect_client(tmp_path) as client:
        client.observe_mappings(pin_memory)
        view = client.view(await client.put(np.arange(1 << 16), invocation="i", deadline=make_deadline()))
        await wait_until(lambda: torch.from_numpy(view).is_pinned())

        (copy,) = copy_to_device([view], torch.device("cuda"), torch.int64)

        assert torch.from_numpy(view).is_pinned()
        assert copy.cpu().numpy().tolist() == view.tolist()
