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
def run_keys(
    valkey_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run ``omnibus keys`` and return its output; the store is empty when a test begins."""
    monkeypatch.delenv("OMNIBUS_STORE_URL", raising=False)
    with redis.Redis.from_url(valkey_url) as raw:
        raw.flushall()

    def run_command(*arguments: str, code: int = 0) -> str:
        assert main(["keys", *arguments, "--store", valkey_url]) == code
        output = capsys.readouterr()
        return output.err if code else output.out

    return run_command


def test_a_key_is_shown_once_and_only_its_hash_is_listed(run_keys: Callable[..., str]):
    key, notice = run_keys("create", "search", "--weight", "2", "--rate", "5", "--note", "nightly").splitlines()

    listing = run_keys("list")

    assert key.startswith(api_key.PREFIX)
    assert key not in listing
    assert api_key.hash_key(key)[:12] in notice
    assert [cell in listing for cell in (api_key.hash_key(key)[:12], "search", "5/s", "nightly")] == [True] * 4


def test_no_two_keys_are_the_same(run_keys: Callable[..., str]):
    keys = {run_keys("create", "search").splitlines()[0] for _ in range(5)}

    assert len(keys) == 5
    assert all(len(key) > 40 for key in keys)


def test_a_revoked_key_is_gone(run_keys: Callable[..., str]):
    created_key = json.loads(run_keys("create", "search", "--json"))

    run_keys("revoke", created_key["record"]["sha256"][:12])

    assert json.loads(run_keys("list", "--json")) == []
    assert "there is no key" in run_keys("revoke", created_key["record"]["sha256"][:12], code=1)


@pytest.mark.parametrize("wrong", [("a b",), ("search", "--weight", "0"), ("search", "--rate", "-1")])
def test_a_wrong_record_is_refused(run_keys: Callable[..., str], wrong: tuple[str, ...]):
    assert run_keys("create", *wrong, code=1).startswith("omnibus: ")


def test_a_record_for_a_file_needs_no_store(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["keys", "create", "search", "--offline", "--concurrent", "4"]) == 0
    created_key = json.loads(capsys.readouterr().out)

    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [created_key["record"]]}))

    key_record = api_key.find_key_record(api_key.read_key_file(path), created_key["key"])
    assert key_record is not None
    assert (key_record.tenant, key_record.concurrent) == ("search", 4)


def test_the_configuration_of_the_bus_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["nats-config", "--port", "4222", "--store-dir", "/data"]) == 0

    assert capsys.readouterr().out == permissions.server_config(port=4222, store="/data")


def test_the_permissions_of_the_bus_are_printed_as_json(capsys: pytest.CaptureFixture[str]):
    assert main(["nats-config", "--json"]) == 0

    permission_sets = json.loads(capsys.readouterr().out)
    assert {user: tuple(each["publish"]) for user, each in permission_sets.items()} == {
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
    task_subjects = {user: {each for each in may["subscribe"] if ".task." in each} for user, may in users.items()}
    assert {"omnibus.task.encode-a-vision", "omnibus.task.think-a-thinker.*"} <= task_subjects["model-a"]
    assert "omnibus.task.think-b_2-thinker" in task_subjects["model-b_2"]
    assert not [each for each in task_subjects["model-b_2"] if "-a-" in each or "vision" in each or "*." in each]


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
