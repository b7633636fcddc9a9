"""The data of the operators' pages: state, errors, and no secrets."""

from pathlib import Path

import pytest

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.executor.runner import Job
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_gateway.console.log_tail import TAIL_BYTES
from omnibus_gateway.tenancy.tenant import KeyView
from tests.unit.gateway.house import (
    TEXT,
    VL,
    ToyGateway,
    read_chat_answer,
    read_error_body,
    start_toy_gateway,
    write_chat_words,
)
from tests.unit.sidecar.node import wait_until

SECRET = "my-secret-words"


async def fail_on_poison(job: Job) -> None:
    if "poison" in str(await job.value("messages")):
        raise RuntimeError("a defect")
    await write_chat_words(job)


async def test_executors_say_where_they_run_and_what_they_did(home: ToyGateway):
    await home.all_of(VL)
    read_chat_answer(await home.ask())

    executors = (await home.http.get("/v1/console/executors")).json()["data"]
    one = (await home.http.get(f"/v1/console/executors/{executors[0]['id']}")).json()

    assert [(each["model"], each["option"]) for each in executors] == sorted(
        (each["model"], each["option"]) for each in executors
    )
    assert {each["health"] for each in executors} == {"ok"}
    assert one["id"] == executors[0]["id"]
    assert one["memory_bytes"] > 1 << 20
    assert [stage["component"] for stage in one["stages"]]


async def test_an_executor_that_is_not_there_is_said(home: ToyGateway):
    response = await home.http.get("/v1/console/executors/nobody")

    assert (response.status_code, read_error_body(response)["code"]) == (404, "not_found")
    assert "nobody" in read_error_body(response)["message"]


async def test_keys_are_named_by_the_first_digits_of_their_hash(home: ToyGateway):
    key = api_key.generate_key()
    of_file = KeyRecord(api_key.hash_key(key), "search", rate=10, note="nightly")
    of_store = KeyRecord(api_key.hash_key(api_key.generate_key()), "ads", weight=2)
    home.keys = KeyView(True, [of_file, of_store], frozenset({of_file.sha256}), follows_store=True)

    answer = await home.http.get("/v1/console/keys")

    ads, search = answer.json()["data"]
    assert answer.json()["required"] is True
    assert (search["id"], search["tenant"], search["rate"], search["source"]) == (of_file.id, "search", 10, "file")
    assert (ads["weight"], ads["source"]) == (2, "store")
    assert key not in answer.text
    assert of_file.sha256 not in answer.text


async def test_a_key_is_shown_once_and_good_until_it_is_revoked(tmp_path: Path, valkey_url: str):
    of_file = KeyRecord(api_key.hash_key(api_key.generate_key()), "search")
    store = Store(StoreSettings(url=valkey_url, prefix="console-keys"))
    async with start_toy_gateway(tmp_path, store) as home:
        home.keys = KeyView(True, [of_file], frozenset({of_file.sha256}), follows_store=False)
        creation = await home.http.post("/v1/console/keys", json={"tenant": "ads", "weight": 2, "rate": 5})
        listing = await home.http.get("/v1/console/keys")
        stored_keys = await store.keys()
        deletion = await home.http.delete(f"/v1/console/keys/{creation.json()['id']}")
        again = await home.http.delete(f"/v1/console/keys/{creation.json()['id']}")
        file_deletion = await home.http.delete(f"/v1/console/keys/{of_file.id}")
        vague = await home.http.delete("/v1/console/keys/ab")
        left = await store.keys()
    await store.close()

    key = creation.json()["key"]
    assert (creation.status_code, creation.json()["tenant"], creation.json()["rate"]) == (201, "ads", 5)
    assert stored_keys[api_key.hash_key(key)].weight == 2
    assert key not in listing.text
    assert [(each["tenant"], each["source"]) for each in listing.json()["data"]] == [
        ("ads", "store"),
        ("search", "file"),
    ]
    assert (deletion.status_code, deletion.json()["id"], left) == (200, creation.json()["id"], {})
    rejections = [(each.status_code, read_error_body(each)["code"]) for each in (again, file_deletion, vague)]
    assert rejections == [(404, "not_found"), (409, "conflict"), (400, "bad_request")]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"tenant": "no tenant!"}, "is not a tenant name"),
        ({"rate": 1}, "tenant"),
        ({"tenant": "a", "weight": 0}, "$.weight"),
        ({"tenant": "a", "created": 1}, "created is set by the gateway"),
        ({"tenant": "a", "colour": "red"}, "colour"),
        ([], "Expected `object`"),
    ],
)
async def test_what_is_no_key_is_refused_and_says_why(home: ToyGateway, body: object, why: str):
    answer = await home.http.post("/v1/console/keys", json=body)

    assert (answer.status_code, read_error_body(answer)["code"]) == (400, "bad_request")
    assert why in read_error_body(answer)["message"]


async def test_dead_letters_are_listed_by_pages_and_shown(home: ToyGateway):
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=fail_on_poison)
    ids = [(await home.ask(TEXT, f"poison {SECRET} {number}")).headers["x-request-id"] for number in range(3)]

    async def all_there() -> bool:
        return len((await home.http.get("/v1/console/deadletters")).json()["data"]) == len(ids)

    await wait_until(all_there)
    first = (await home.http.get("/v1/console/deadletters?limit=2")).json()
    second = (await home.http.get(f"/v1/console/deadletters?limit=2&before={first['next']}")).json()
    one = await home.http.get(f"/v1/console/deadletters/{ids[0]}")

    assert [each["id"] for each in [*first["data"], *second["data"]]] == ids[::-1]
    assert second["next"] is None
    assert (one.json()["reason"], one.json()["component"]) == ("failed", "thinker")
    assert one.json()["problem"]["code"] == "stage_failed"
    assert SECRET not in one.text


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "before=-1", "after=3"])
async def test_a_wrong_parameter_is_named(home: ToyGateway, query: str):
    response = await home.http.get(f"/v1/console/deadletters?{query}")

    assert (response.status_code, read_error_body(response)["param"]) == (400, query.partition("=")[0])


async def test_settings_are_said_and_secrets_are_not(home: ToyGateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_GATEWAY_DEADLINE", "7")
    for name in ("OMNIBUS_GATEWAY_SALT", "OMNIBUS_BUS_PASSWORD", "OMNIBUS_STORE_SECRET", "OMNIBUS_STORE_URL"):
        monkeypatch.setenv(name, SECRET)

    answer = await home.http.get("/v1/console/settings")

    settings = {each["name"]: each for each in answer.json()["data"]}
    assert (settings["OMNIBUS_GATEWAY_DEADLINE"]["value"], settings["OMNIBUS_GATEWAY_DEADLINE"]["default"]) == (
        "7",
        120.0,
    )
    assert settings["OMNIBUS_STORE_URL"]["value"] == settings["OMNIBUS_GATEWAY_SALT"]["value"] == "(set)"
    assert settings["OMNIBUS_GATEWAY_PORT"]["value"] is None
    assert SECRET not in answer.text


async def test_the_log_of_one_process_and_its_replicas_ends_with_its_last_lines(tmp_path: Path):
    log = tmp_path / "up.log"
    filler = "other    | x\n" * (TAIL_BYTES // 10)
    log.write_text(
        f"m/Th     | long ago\n{filler}m/Th     | one\nm/Tha    | not this\nm/Th/1   | two\nm/Th     | three\n"
    )
    async with start_toy_gateway(tmp_path, log_file=str(log)) as home:
        log_tail = (await home.http.get("/v1/console/logs?process=m/Th&lines=2")).json()
        whole = (await home.http.get("/v1/console/logs?process=m/Th")).json()

    assert log_tail["lines"] == ["m/Th/1   | two", "m/Th     | three"]
    assert whole["lines"] == ["m/Th     | one", *log_tail["lines"]]
    assert log_tail["processes"] == ["m/Th", "m/Th/1", "m/Tha", "other"]


async def test_where_there_is_no_log_the_answer_says_where_logs_are(home: ToyGateway):
    response = await home.http.get("/v1/console/logs")

    assert response.status_code == 404
    assert "kubectl logs" in read_error_body(response)["message"]
