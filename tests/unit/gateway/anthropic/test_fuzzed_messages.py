"""Any body for a message gets an answer or a 4xx in Anthropic's format, and leaks nothing."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.gateway.anthropic.house import PATH, build_message_body, read_message_error, read_message_events
from tests.unit.gateway.background import Running
from tests.unit.gateway.fuzz import JUNK, Schemas
from tests.unit.gateway.house import OMNI, PAINTER

KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from([OMNI, PAINTER, "nobody"]),
    "stream": st.booleans(),
    "role": st.sampled_from(["user", "assistant", "system", "user"]),
}
FINE = build_message_body(model=OMNI)
COUNTED = {name: value for name, value in FINE.items() if name != "max_tokens"}
EXAMPLES = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module")
def background_gateway(tmp_path_factory: pytest.TempPathFactory, valkey_url: str) -> Iterator[Running]:
    gateway = Running(tmp_path_factory.mktemp("fuzz"), valkey_url)
    yield gateway
    gateway.close()


@pytest.fixture(scope="module")
def schemas(background_gateway: Running) -> Schemas:
    document = background_gateway.do(background_gateway.home.http.get("/openapi.json")).json()
    return Schemas(document, KNOWN)


def check_response(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        read_message_error(response)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert read_message_events(response.text)[-1]["type"] == "message_stop"


@pytest.mark.parametrize(
    ("path", "component", "fine"),
    [(PATH, "MessageRequest", FINE), (f"{PATH}/count_tokens", "CountTokensRequest", COUNTED)],
)
def test_json_is_answered_or_refused(
    background_gateway: Running, schemas: Schemas, path: str, component: str, fine: dict[str, Any]
):
    @EXAMPLES
    @given(schemas.body(component, fine) | JUNK)
    def any_body(body: Any) -> None:
        sent = json.dumps(body).encode()
        check_response(background_gateway.do(background_gateway.home.http.post(path, content=sent)))

    any_body()
    background_gateway.do(background_gateway.home.emptied())
