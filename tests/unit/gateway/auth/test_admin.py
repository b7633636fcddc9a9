"""Clients that may use control routes."""

from collections.abc import Mapping

import pytest

from omnibus.errors import BadRequest, Forbidden, OmnibusError, Unauthorized
from omnibus.settings import GatewaySettings
from omnibus_gateway.auth.access_rules import AdminAuth, check_token, is_loopback
from omnibus_gateway.service import GatewayService

HERE = {"host": "127.0.0.1:8000"}
TOKEN = {**HERE, "authorization": "Bearer open-sesame"}


def find_refusal(admin: AdminAuth, headers: Mapping[str, str], code: bool = False) -> type[OmnibusError] | None:
    try:
        (admin.require_token if code else admin.check_control_access)(headers)
    except OmnibusError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    ("token", "host", "headers", "control", "code"),
    [
        ("open-sesame", "127.0.0.1", TOKEN, None, None),
        ("open-sesame", "0.0.0.0", TOKEN, None, None),
        ("open-sesame", "127.0.0.1", HERE, Unauthorized, Unauthorized),
        ("open-sesame", "127.0.0.1", {"authorization": "Bearer open"}, Unauthorized, Unauthorized),
        ("open-sesame", "127.0.0.1", {"authorization": "open-sesame"}, Unauthorized, Unauthorized),
        ("open-sesame", "127.0.0.1", {"authorization": "Bearer "}, Unauthorized, Unauthorized),
        ("", "127.0.0.1", HERE, None, Forbidden),
        ("", "localhost", {"host": "localhost:8000"}, None, Forbidden),
        ("", "::1", {"host": "[::1]:8000"}, None, Forbidden),
        ("", "0.0.0.0", HERE, Forbidden, Forbidden),
        ("", "::", HERE, Forbidden, Forbidden),
        ("", "10.0.0.5", HERE, Forbidden, Forbidden),
        ("", "gateway.internal", HERE, Forbidden, Forbidden),
        ("", "0.0.0.0", {"authorization": "Bearer "}, Forbidden, Forbidden),
    ],
)
def test_who_may_use_control_routes(
    token: str,
    host: str,
    headers: Mapping[str, str],
    control: type[OmnibusError] | None,
    code: type[OmnibusError] | None,
):
    admin = AdminAuth(GatewaySettings(admin_token=token, host=host))

    assert find_refusal(admin, headers) is control
    assert find_refusal(admin, headers, code=True) is code


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},  # a name that resolves to this machine
        {"host": ""},
        {},
        {"host": "127.0.0.1:8000", "origin": "https://evil.example"},
        {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:9000"},
        {"host": "127.0.0.1:8000", "origin": "null"},
    ],
)
def test_a_page_of_somewhere_else_is_not_this_machines_own_client(headers: Mapping[str, str]):
    assert find_refusal(AdminAuth(GatewaySettings()), headers) is Forbidden


def test_the_gateways_own_page_is():
    headers = {"host": "localhost:8000", "origin": "http://localhost:8000"}

    assert find_refusal(AdminAuth(GatewaySettings()), headers) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost"])
def test_loopback_is_known(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "localhost.evil.example", "2130706433"])
def test_what_is_not_loopback_is_not(host: str):
    assert not is_loopback(host)


@pytest.mark.parametrize(("token", "starts"), [("", True), ("a", False), ("a" * 15, False), ("a" * 16, True)])
def test_a_token_that_can_be_guessed_is_refused_at_the_start(token: str, starts: bool):
    if starts:
        check_token(GatewaySettings(admin_token=token))
        return
    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_ADMIN_TOKEN has .* set at least 16"):
        check_token(GatewaySettings(admin_token=token))


async def test_a_gateway_does_not_start_with_such_a_token(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_GATEWAY_ADMIN_TOKEN", "a")

    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_ADMIN_TOKEN"):
        await GatewayService().startup()
