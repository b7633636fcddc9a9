"""Only web pages of the configured origins can use a gateway."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.auth.access_rules import allow_origins
from omnibus_gateway.auth.tenancy import Tenancy
from tests.unit.gateway.house import TEXT, ToyGateway, build_chat_body, start_toy_gateway

HERE, PAGE = "http://127.0.0.1:8000", "https://app.example.com"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


@pytest.fixture
async def open_house(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as home:
        await home.all_of(TEXT)
        yield home


def make_client(home: ToyGateway, **settings: Any) -> httpx.AsyncClient:
    """Return a client of ``home`` with the service's middleware."""
    gateway_settings = GatewaySettings(**settings)
    store = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))
    guarded_app = Tenancy(gateway_settings, store, home.router).guard_application(home.app)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=allow_origins(guarded_app, gateway_settings)), base_url=HERE
    )


@pytest.mark.parametrize("origin", [PAGE, "https://app.example.com.evil.test", "null"])
async def test_pages_of_the_origins_that_are_named_may_chat_and_others_may_not(open_house: ToyGateway, origin: str):
    http, headers = make_client(open_house, cors_origins=f"{PAGE}, http://localhost:3000/"), {"origin": origin}

    before = await http.options("/v1/chat/completions", headers={**headers, **PREFLIGHT})
    answer = await http.post(
        "/v1/chat/completions", json=build_chat_body(TEXT, "hi"), headers={**headers, "sec-fetch-site": "cross-site"}
    )

    if origin == PAGE:
        assert (before.status_code, answer.status_code) == (200, 200)
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    else:
        assert (before.status_code, answer.status_code) == (400, 403)
        assert "access-control-allow-origin" not in answer.headers


async def test_without_the_setting_no_page_of_another_origin_may(open_house: ToyGateway):
    answer = await make_client(open_house).post(
        "/v1/chat/completions",
        json=build_chat_body(TEXT, "hi"),
        headers={"origin": PAGE, "sec-fetch-site": "cross-site"},
    )

    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


async def test_all_origins_may_only_where_keys_are_asked_for(open_house: ToyGateway, tmp_path: Path):
    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_KEYS"):
        make_client(open_house, cors_origins="*")

    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    http = make_client(open_house, cors_origins="*", keys_file=str(keys))
    before = await http.options("/v1/models", headers={"origin": PAGE, **PREFLIGHT})
    answer = await http.get("/v1/models", headers={"origin": PAGE})

    assert (before.status_code, answer.status_code) == (200, 401)  # a key is required, and the page can read that
    assert answer.headers["access-control-allow-origin"] == "*"
