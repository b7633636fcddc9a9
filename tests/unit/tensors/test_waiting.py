"""A service that starts without its sidecar waits for a limited time."""

import asyncio

import pytest

from omnibus.errors import ProtocolError, Retryable
from omnibus.tensors import client as waiting
from tests.unit.sidecar.node import NODE, run_sidecar


async def test_a_service_that_starts_before_its_sidecar_waits_for_it(tmp_path, caplog):
    starting = asyncio.create_task(waiting.connect_when_ready(str(tmp_path / "s"), "gateway", NODE))
    while "waiting up to" not in caplog.text:  # its first attempt failed
        await asyncio.sleep(0.01)

    async with run_sidecar(tmp_path) as sidecar, asyncio.timeout(20):
        client = await starting

        assert (await client.stats())["blocks"] == 0
        assert sidecar.snapshot()["clients"] == 1
        await client.close()


async def test_without_a_sidecar_the_wait_ends_with_what_is_missing(tmp_path):
    with pytest.raises(Retryable, match=r"no sidecar answers at .*; is it running"):
        await waiting.connect_when_ready(str(tmp_path / "s"), "gateway", NODE, within=0.3)


async def test_a_sidecar_of_another_node_is_not_waited_for(tmp_path):
    async with run_sidecar(tmp_path):
        with pytest.raises(ProtocolError, match="serves node"):
            await waiting.connect_when_ready(str(tmp_path / "s"), "gateway", "other", within=1000.0)
