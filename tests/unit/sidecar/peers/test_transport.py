"""The transport setting for large pulls, and its errors at startup."""

import asyncio
import sys

import pytest

from omnibus.errors import BadRequest, Fatal
from omnibus.settings import SidecarSettings
from omnibus.tensors.peer_protocol import PeerFrame, PeerVerb, UcxAddress, decode_ucx_address
from omnibus_sidecar.peers.stream import read_frame, read_text, write_frame, write_text
from omnibus_sidecar.service import _peer_config
from tests.unit.sidecar.node import wait_until
from tests.unit.sidecar.peers.pair import peer_config, start_node, two_nodes
from tests.unit.sidecar.peers.raw import connect_greeted


def make_settings(tmp_path, **changes) -> SidecarSettings:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    return SidecarSettings(host="127.0.0.1", secret_file=str(secret), **changes)


@pytest.mark.parametrize("transport", ["tcp", "ucx"])
def test_tcp_and_ucx_carry_pulls(tmp_path, transport):
    config = _peer_config(make_settings(tmp_path, transport=transport))

    assert config is not None
    assert config.transport == transport


def test_another_transport_is_refused_by_name(tmp_path):
    with pytest.raises(BadRequest, match="OMNIBUS_SIDECAR_TRANSPORT must be tcp or ucx, not 'rdma'"):
        _peer_config(make_settings(tmp_path, transport="rdma"))


def test_ucx_is_refused_where_bytes_are_to_be_encrypted(tmp_path):
    with pytest.raises(BadRequest, match="unencrypted"):
        _peer_config(make_settings(tmp_path, transport="ucx", tls_ca="ca.pem", tls_cert="cert.pem", tls_key="key.pem"))


async def test_a_sidecar_without_ucxx_does_not_start_with_ucx_and_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ucxx", None)  # as if it were not installed

    with pytest.raises(Fatal, match=r"pip install 'omnibus-serve\[ucx\]'"):
        await start_node("a", tmp_path, peer_config(transport="ucx"))


async def test_a_node_without_ucx_answers_an_offer_with_no_address(tmp_path):
    async with two_nodes(tmp_path) as (a, _):
        stream = await connect_greeted(a)
        await write_text(stream, PeerVerb.UCX, UcxAddress("1.21.0", b"somewhere"))
        frame = await read_frame(stream)

        assert frame.verb == PeerVerb.UCX
        assert decode_ucx_address(await read_text(stream, frame.nbytes)) == UcxAddress("")


@pytest.mark.parametrize("verb", [PeerVerb.GET, PeerVerb.UCX])
async def test_a_tag_without_a_lane_and_an_offer_that_is_none_cost_the_connection(tmp_path, verb):
    async with two_nodes(tmp_path) as (a, _):
        stream = await connect_greeted(a)
        if verb == PeerVerb.GET:
            await write_frame(stream, PeerFrame(PeerVerb.GET, nbytes=1000, remaining=30.0, tag=5))
        else:
            await write_text(stream, PeerVerb.UCX, ["no address"])

        with pytest.raises(OSError):
            await asyncio.wait_for(read_frame(stream), 10.0)
        await wait_until(lambda: a.counters["refused_peers_total"] == {"protocol_error": 1})
