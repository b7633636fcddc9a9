"""``omnibus keys`` on a real store, and ``omnibus nats-config``."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from omnibus import api_key
from omnibus.bus import permissions
from omnibus.cli import main


@pytest.fixture
def say(valkey_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run ``omnibus keys`` and return its output; the store is empty when a test begins."""
    monkeypatch.delenv("OMNIBUS_STORE_URL", raising=False)
    with redis.Redis.from_url(valkey_url) as raw:
        raw.flushall()

    def said(*arguments: str, code: int = 0) -> str:
        assert main(["keys", *arguments, "--store", valkey_url]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return said


def test_a_key_is_shown_once_and_only_its_hash_is_listed(say: Callable[..., str]):
    key, told = say("create", "search", "--weight", "2", "--rate", "5", "--note", "nightly").splitlines()

    listed = say("list")

    assert key.startswith(api_key.PREFIX)
    assert key not in listed
    assert api_key.hash_key(key)[:12] in told
    assert [cell in listed for cell in (api_key.hash_key(key)[:12], "search", "5/s", "nightly")] == [True] * 4


def test_no_two_keys_are_the_same(say: Callable[..., str]):
    made = {say("create", "search").splitlines()[0] for _ in range(5)}

    assert len(made) == 5
    assert all(len(key) > 40 for key in made)


def test_a_revoked_key_is_gone(say: Callable[..., str]):
    made = json.loads(say("create", "search", "--json"))

    say("revoke", made["record"]["sha256"][:12])

    assert json.loads(say("list", "--json")) == []
    assert "there is no key" in say("revoke", made["record"]["sha256"][:12], code=1)


@pytest.mark.parametrize("wrong", [("a b",), ("search", "--weight", "0"), ("search", "--rate", "-1")])
def test_a_wrong_record_is_refused(say: Callable[..., str], wrong: tuple[str, ...]):
    assert say("create", *wrong, code=1).startswith("omnibus: ")


def test_a_record_for_a_file_needs_no_store(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["keys", "create", "search", "--offline", "--concurrent", "4"]) == 0
    made = json.loads(capsys.readouterr().out)

    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [made["record"]]}))

    found = api_key.find_key_record(api_key.read_key_file(path), made["key"])
    assert found is not None
    assert (found.tenant, found.concurrent) == ("search", 4)


def test_the_configuration_of_the_bus_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["nats-config", "--port", "4222", "--store-dir", "/data"]) == 0

    assert capsys.readouterr().out == permissions.server_config(port=4222, store="/data")


def test_the_permissions_of_the_bus_are_printed_as_json(capsys: pytest.CaptureFixture[str]):
    assert main(["nats-config", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert {user: tuple(each["publish"]) for user, each in found.items()} == {
        user: may.publish for user, may in permissions.permissions_by_user().items()
    }


def test_declared_models_get_a_user_each_for_their_own_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "models.json"
    models = {
        "a": {"family": "qwen2_5_vl", "checkpoint": "/models/a"},
        "b.2": {"family": "qwen2_5_vl", "checkpoint": "/models/b", "shares": {"vision": "a"}},
    }
    path.write_text(json.dumps({"models": models}))

    assert main(["nats-config", "--json", "--models", str(path)]) == 0

    users = json.loads(capsys.readouterr().out)
    heard = {user: {each for each in may["subscribe"] if ".task." in each} for user, may in users.items()}
    assert {"omnibus.task.encode-a-vision", "omnibus.task.think-a-thinker.*"} <= heard["model-a"]
    assert "omnibus.task.think-b_2-thinker" in heard["model-b_2"]
    assert not [each for each in heard["model-b_2"] if "-a-" in each or "vision" in each or "*." in each]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"models": {"a": {"family": "unknown"}}}',
        '{"models": {"a.b": {"family": "qwen2_5_vl"}, "a_b": {"family": "qwen2_5_vl"}}}',
    ],
)
def test_declared_models_that_cannot_be_read_are_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "models.json"
    path.write_text(text)

    assert main(["nats-config", "--models", str(path)]) != 0

    assert "models.json" in capsys.readouterr().err
