"""The setting of what carries large pulls: what is refused at the start, and what to do about it."""

import sys

import pytest

from omnibus.errors import BadRequest, Fatal
from omnibus.settings import SidecarSettings
from services.sidecar.service import _peer_config
from tests.unit.sidecar.peers.pair import peer_config, start_node


def settings(tmp_path, **changes) -> SidecarSettings:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    return SidecarSettings(host="127.0.0.1", secret_file=str(secret), **changes)


@pytest.mark.parametrize("transport", ["tcp", "ucx"])
def test_tcp_and_ucx_carry_pulls(tmp_path, transport):
    config = _peer_config(settings(tmp_path, transport=transport))

    assert config is not None
    assert config.transport == transport


def test_another_transport_is_refused_by_name(tmp_path):
    with pytest.raises(BadRequest, match="OMNIBUS_SIDECAR_TRANSPORT is tcp or ucx, not 'rdma'"):
        _peer_config(settings(tmp_path, transport="rdma"))


def test_ucx_is_refused_where_bytes_are_to_be_encrypted(tmp_path):
    with pytest.raises(BadRequest, match="unencrypted"):
        _peer_config(settings(tmp_path, transport="ucx", tls_ca="ca.pem", tls_cert="cert.pem", tls_key="key.pem"))


async def test_a_sidecar_without_ucxx_does_not_start_with_ucx_and_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ucxx", None)  # as if it were not installed

    with pytest.raises(Fatal, match=r"pip install 'omnibus-serve\[ucx\]'"):
        await start_node("a", tmp_path, peer_config(transport="ucx"))
