"""A gateway without keys rejects web pages and accepts its own clients."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.auth.tenancy import Tenancy
from tests.unit.gateway.house import TEXT, VL, ToyGateway, build_chat_body, read_error_body, start_toy_gateway

HERE = "127.0.0.1:8000"
TOKEN = "the-operators-own-token"
SETTINGS = {
    "host": "gateway.example.net",
    "public_url": "https://api.example.com/omni",
    "allowed_hosts": "a.test, B.test",
}


def make_guarded_client(home: ToyGateway, **settings: str | bool) -> httpx.AsyncClient:
    """Return a client of ``home`` with the service's middleware."""
    store = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))
    app = Tenancy(GatewaySettings(**settings), store, home.router).guard_application(home.app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=f"http://{HERE}")


@pytest.fixture
async def open_house(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as home:
        await home.all_of(TEXT)
        yield home


PAGES = [
    {"host": "evil.test"},  # a name that resolves to this machine
    {"host": "evil.test:8000", "origin": "http://evil.test:8000", "sec-fetch-site": "same-origin"},
    {"host": "127.0.0.1.evil.test"},
    {"host": "localhost.evil.test:8000"},
    {"host": "gateway.default.svc.evil.test"},
    {"host": "evil.test@127.0.0.1"},
    {"host": "["},
    {"host": HERE, "origin": "http://evil.test"},
    {"host": HERE, "origin": "null"},
    {"host": HERE, "origin": "http://127.0.0.1:9000"},
    {"host": HERE, "origin": "http://localhost:8000"},
    {"host": HERE, "sec-fetch-site": "cross-site"},
    {"host": HERE, "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    {"host": HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
]
ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/videos"),
    ("DELETE", "/v1/videos/video_1"),
    ("POST", "/v1/apps/echo/invoke"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
]


@pytest.mark.parametrize("headers", PAGES, ids=lambda headers: " ".join(headers.values()))
async def test_a_page_of_somewhere_else_uses_nothing(open_house: ToyGateway, headers: dict[str, str]):
    http = make_guarded_client(open_house)
    question_of_a_page = json.dumps(build_chat_body(TEXT, "hi")).encode()

    for method, path in ROUTES:
        body = question_of_a_page if method == "POST" else None
        rejection = await http.request(method, path, content=body, headers={"content-type": "text/plain", **headers})

        assert (rejection.status_code, read_error_body(rejection)["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": HERE},
        {"host": "localhost:8000"},
        {"host": "LOCALHOST"},
        {"host": "[::1]:8000"},
        {"host": "192.168.1.7:8000"},  # an address is not a page's name
        {"host": "gateway:8000"},  # of containers
        {"host": "omnibus-gateway.default.svc:8000"},
        {"host": "omnibus-gateway.default.svc.cluster.local.:8000"},
        {"host": "host.docker.internal:8000"},
        {"host": "gateway.example.net:8000"},
        {"host": "api.example.com"},
        {"host": "a.test:1"},
        {"host": "b.test"},
        {"host": HERE, "origin": f"http://{HERE}", "sec-fetch-site": "same-origin"},
        {
            "host": "gateway:8000",
            "origin": "https://api.example.com",
            "sec-fetch-site": "same-origin",
        },  # behind a proxy
        {"host": HERE, "sec-fetch-site": "none"},
        {"host": HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        {"host": "evil.test", "authorization": f"Bearer {TOKEN}"},
    ],
    ids=lambda headers: " ".join(headers.values()),
)
async def test_its_own_clients_use_it_by_all_names_that_are_its_own(open_house: ToyGateway, headers: dict[str, str]):
    response = await make_guarded_client(open_house, admin_token=TOKEN, **SETTINGS).get("/v1/models", headers=headers)

    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/readyz", "/version", "/v1/files/unknown"])
async def test_probes_and_files_are_open(open_house: ToyGateway, path: str):
    response = await make_guarded_client(open_house).get(
        path, headers={"host": "evil.test", "sec-fetch-site": "cross-site"}
    )

    assert response.status_code in (200, 404)


async def test_the_openai_client_needs_nothing_else(open_house: ToyGateway):
    client = openai.AsyncOpenAI(
        api_key="none", base_url=f"http://{HERE}/v1", http_client=make_guarded_client(open_house)
    )

    answer = await client.chat.completions.create(model=TEXT, messages=[{"role": "user", "content": "hello"}])

    assert (answer.choices[0].message.content or "").startswith("You said hello")


async def test_where_keys_are_asked_for_they_are_enough(open_house: ToyGateway):
    rejection = await make_guarded_client(open_house, keys=True).get("/v1/models", headers={"host": "evil.test"})

    assert rejection.status_code == 401


async def test_the_refusal_says_what_to_set(open_house: ToyGateway):
    rejection = await make_guarded_client(open_house).get(f"/v1/models/{VL}", headers={"host": "llm.example.org"})

    assert "OMNIBUS_GATEWAY_ALLOWED_HOSTS" in read_error_body(rejection)["message"]
