"""Join files: private, complete, and with one secret for bus and sidecars."""

from pathlib import Path

import pytest

from omnibus.errors import BadRequest
from omnibus.up.gpus import gpu_kind
from omnibus.up.join import JoinFile, read_join_file, shared_secret, write_join_file
from omnibus.up.listening import parse_listen

JOIN = JoinFile("nats://10.0.0.1:4222", "s" * 64)


def test_a_written_file_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    path.write_text("older")
    path.chmod(0o644)

    write_join_file(path, JOIN)

    assert path.stat().st_mode & 0o777 == 0o600
    assert read_join_file(path) == JOIN


def test_another_secret_changes_both_passwords() -> None:
    other = JoinFile(JOIN.bus, "t" * 64)

    words = {JOIN.bus_password, JOIN.sidecar_secret, other.bus_password, other.sidecar_secret, JOIN.secret}

    assert len(words) == 5


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("{", 0o600, "is not a file of `omnibus node token`"),
        ('{"bus": "nats://h:1", "secret": "%s", "other": 1}' % ("s" * 64), 0o600, "is not a file of"),
        ('{"bus": "nats://h:1", "secret": "short"}', 0o600, "has no address or secret"),
        ('{"bus": "h", "secret": "%s"}' % ("s" * 64), 0o600, "has no address or secret"),
        ('{"bus": "nats://h:1", "secret": "%s"}' % ("s" * 64), 0o640, "chmod 600"),
    ],
)
def test_a_wrong_file_is_named_with_its_problem(tmp_path: Path, text: str, mode: int, message: str) -> None:
    path = tmp_path / "join.json"
    path.write_text(text)
    path.chmod(mode)

    with pytest.raises(BadRequest, match=message):
        read_join_file(path)


def test_the_secret_of_all_nodes_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "omnibus" / "nodes.secret"

    secret = shared_secret(path)

    assert shared_secret(path) == secret
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_address_for_other_machines_has_a_host() -> None:
    assert parse_listen("10.0.0.1") == ("10.0.0.1", 4222)
    assert parse_listen("10.0.0.1:5000") == ("10.0.0.1", 5000)
    for text in (":4222", "0.0.0.0", "h:port"):
        with pytest.raises(BadRequest, match="--listen"):
            parse_listen(text)


@pytest.mark.parametrize(
    ("product", "kind"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA L40S", "L40S"), ("Other", "Other")],
)
def test_the_type_of_a_gpu_is_that_of_its_product(product: str, kind: str) -> None:
    assert gpu_kind(product) == kind
