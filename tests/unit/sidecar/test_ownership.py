"""Owners of a sidecar's directory and process: only this user and root are accepted."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from omnibus.errors import BadRequest, ProtocolError
from omnibus.tensors.client import TensorClient
from omnibus_sidecar.service import check_directory
from tests.unit.sidecar import node as nodes

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say who listens")


@as_root
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path):
    os.chown(tmp_path, NOBODY, NOBODY)

    with pytest.raises(BadRequest, match=f"OMNIBUS_SIDECAR_SOCKET belongs to user {NOBODY}"):
        check_directory(tmp_path)


def test_a_directory_that_everybody_may_write_to_is_refused(tmp_path: Path):
    tmp_path.chmod(0o777)

    with pytest.raises(BadRequest, match="world-writable"):
        check_directory(tmp_path)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_directory_of_ones_own_is_taken(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)

    check_directory(tmp_path)


async def test_a_sidecar_of_ones_own_is_believed(tmp_path: Path):
    async with nodes.run_sidecar(tmp_path):
        client = await nodes.connect_client(tmp_path, "reader")
        assert client.connected
        await client.close()


@as_root
@on_linux
async def test_a_sidecar_of_another_user_is_not_believed(tmp_path: Path):
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.seteuid(NOBODY)
    try:
        listener.listen()  # the kernel records the owner
    finally:
        os.seteuid(0)
    with listener, pytest.raises(ProtocolError, match=f"runs as user {NOBODY}, not as 0"):
        async with asyncio.timeout(nodes.PATIENCE):
            await TensorClient.connect(path, "reader", nodes.NODE)
