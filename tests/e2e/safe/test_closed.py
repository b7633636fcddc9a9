"""The small system serves with bus users, TLS and API keys.

Connections without the right credentials fail.
"""

import asyncio
import logging

import httpx
import pytest

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.bus import subjects
from omnibus.errors import BusUnavailable, StoreUnavailable
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from tests import certificates
from tests.e2e.questions import make_image, make_question
from tests.e2e.safe.town import ADMIN, LIGHT, SecuredSystem, chat_body

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
PATIENCE = 20.0


async def test_a_request_is_served_end_to_end(secured_system: SecuredSystem):
    picture = make_question(make_image(1), "describe").messages[0]["content"]

    async with secured_system.http(LIGHT) as http:
        answers = [await http.post(CHAT, json=chat_body(content)) for content in ("hello", picture)]

    assert [each.status_code for each in answers] == [200, 200], answers[-1].text
    assert all(each.json()["choices"][0]["message"]["content"] for each in answers)


async def test_nothing_that_it_does_is_refused_by_the_bus(secured_system: SecuredSystem):
    async with secured_system.http(LIGHT) as http:
        assert (await http.post(CHAT, json=chat_body(stream=True))).status_code == 200

    assert "permissions violation" not in secured_system.read_logs().lower()


async def test_a_recorded_request_is_replayed_by_the_operator(secured_system: SecuredSystem):
    async with secured_system.http(LIGHT) as http:
        id = (await http.post(CHAT, json=chat_body("again", seed=5))).headers["x-request-id"]
    bus = await secured_system.bus("operator")
    try:
        async with asyncio.timeout(PATIENCE):
            while len(records := await bus.read_records(f"omnibus.inv.*.{id}")) < 2:
                await asyncio.sleep(0.05)
        parts = [part async for part in bus.request_stream(subjects.REPLAY, records[0].data, PATIENCE)]
    finally:
        await bus.drain()

    assert b'"status":"done"' in parts[-1]


async def test_an_executor_that_speaks_for_a_gateway_is_refused_and_it_is_seen(
    secured_system: SecuredSystem, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    bus = await secured_system.bus("llm")

    bus.publish(subjects.record_subject("chat", "made-up"), b"{}")
    await bus._flush_connection(5)
    await bus.drain()

    assert any(
        "permissions violation" in text.lower() and "omnibus.inv.chat.made-up" in text for text in caplog.messages
    )


async def test_the_bus_and_the_store_let_no_stranger_in(secured_system: SecuredSystem):
    with pytest.raises(BusUnavailable):
        await closed_bus(secured_system, "", "")
    with pytest.raises(BusUnavailable):
        await closed_bus(secured_system, "gateway", "guessed")
    for url in (
        _store_url(secured_system, "omnibus:guessed@"),
        _store_url(secured_system, ""),
        _store_url(secured_system, "default:@"),
    ):
        store = Store(StoreSettings(url=url, tls_ca=str(certificates.CA)))
        with pytest.raises(StoreUnavailable):
            await store.plan()
        await store.close()


async def test_a_store_of_another_authority_is_not_believed(secured_system: SecuredSystem):
    store = Store(StoreSettings(url=secured_system._env["OMNIBUS_STORE_URL"], tls_ca=str(certificates.OTHER_CA)))

    with pytest.raises(StoreUnavailable):
        await store.plan()

    await store.close()


async def test_the_gateway_speaks_tls_alone_and_its_certificate_is_checked(secured_system: SecuredSystem):
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.HTTPError):
            await http.get(secured_system.url + "/health")
        with pytest.raises(httpx.HTTPError):
            await http.get(secured_system.url.replace("https", "http") + "/health")


async def test_without_a_key_there_is_no_answer(secured_system: SecuredSystem):
    async with secured_system.http() as http:
        assert (await http.post(CHAT, json=chat_body())).status_code == 401
        assert (await http.get("/health")).status_code == 200
    async with secured_system.http(ADMIN) as http:
        assert (await http.get("/v1/models")).status_code == 200


async def test_a_key_of_the_store_is_good_until_it_is_revoked(secured_system: SecuredSystem):
    store = Store(StoreSettings(url=secured_system._env["OMNIBUS_STORE_URL"], tls_ca=str(certificates.CA)))
    key = api_key.generate_key()
    record = KeyRecord(api_key.hash_key(key), "guest")
    async with asyncio.timeout(PATIENCE), secured_system.http(key) as http:
        await store.put_key(record)
        while (await http.get("/v1/models")).status_code != 200:
            await asyncio.sleep(0.05)
        await store.drop_key(record.id)
        while (await http.get("/v1/models")).status_code != 401:
            await asyncio.sleep(0.05)
    await store.close()


async def closed_bus(system: SecuredSystem, user: str, password: str) -> None:
    from omnibus.bus.nats import NatsBus

    await NatsBus.connect(BusSettings(system.bus_url, user, password, str(certificates.CA), connect_timeout=5.0), "x")


def _store_url(system: SecuredSystem, user: str) -> str:
    url = system._env["OMNIBUS_STORE_URL"]
    return f"rediss://{user}{url.rpartition('@')[2]}"


def test_every_process_listens_on_loopback_alone(secured_system: SecuredSystem):
    listening = secured_system.list_listeners()

    assert {"gateway"} <= {name for name, _ in listening}
    assert {address for _, address in listening} <= {"127.0.0.1", "::1"}
