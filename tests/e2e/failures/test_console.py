"""Failed requests as an operator finds them in a browser: on two gateways whose clients need keys."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.e2e.console.conftest import TOKEN, open_browser, open_console, sign_in, single_option
from tests.e2e.system import OMNI, System, start_system

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

MOST_CLICKS = 3
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "what only the client may read"}]
NOTE = "nightly batch"
KEY_WAIT_SECONDS = 30.0


@pytest.fixture(scope="module")
def keyed_system(tmp_path_factory: pytest.TempPathFactory, omni_checkpoint: Path) -> Iterator[System]:
    models = {OMNI: single_option("qwen2_5_omni", omni_checkpoint, "M")}
    settings = {"OMNIBUS_GATEWAY_ADMIN_TOKEN": TOKEN, "OMNIBUS_GATEWAY_KEYS": "true"}
    with start_system(tmp_path_factory.mktemp("failures"), models, "--gateways", "2", **settings) as system:
        yield system


@pytest.fixture(scope="module")
def key(keyed_system: System) -> dict[str, str]:
    """A key with a note, in force at the second gateway."""
    body = {"tenant": "search", "note": NOTE}
    operator = {"authorization": f"Bearer {TOKEN}"}
    new_key: dict[str, str] = httpx.post(f"{keyed_system.url}/v1/console/keys", json=body, headers=operator).json()
    until = time.monotonic() + KEY_WAIT_SECONDS
    while send(keyed_system, new_key["key"], {"model": OMNI, "messages": MESSAGES, "max_tokens": 2}).status_code == 401:
        assert time.monotonic() < until, "the new key is not in force"
    return new_key


@pytest.fixture(scope="module")
def browser(keyed_system: System) -> Iterator[Browser]:
    with open_browser() as new_browser:
        yield new_browser


@pytest.fixture
def console(keyed_system: System, browser: Browser) -> Iterator[Page]:
    """The console of the first gateway."""
    with open_console(browser, keyed_system.url) as page:
        yield sign_in(page)


def send(system: System, key: str, body: dict) -> httpx.Response:
    """Send a chat to the second gateway."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{system.urls[1]}{CHAT}", json=body, headers=headers, timeout=60)


def send_bad_requests(system: System, key: str) -> list[httpx.Response]:
    """Send an unknown model, an invalid parameter, and a wrong key."""
    return [
        send(system, key, {"model": "nobody", "messages": MESSAGES}),
        send(system, key, {"model": OMNI, "messages": MESSAGES, "max_tokens": -5}),
        send(system, "guessed", {"model": OMNI, "messages": MESSAGES}),
    ]


def count_clicks(page: Page) -> None:
    page.evaluate("window.clicks = 0; addEventListener('click', () => window.clicks++, true)")


def find_row(page: Page, response: httpx.Response) -> Locator:
    return page.get_by_role("row").filter(has_text=response.headers["x-request-id"])


def test_a_failing_client_is_found_in_three_clicks_from_live(console: Page, keyed_system: System, key: dict[str, str]):
    unknown, invalid, refused = send_bad_requests(keyed_system, key["key"])
    assert [each.status_code for each in (unknown, invalid, refused)] == [404, 400, 401]
    count_clicks(console)

    tile = console.locator("section.tile", has_text="Rejected requests")
    tile.get_by_role("link", name="not_found").click()

    expect(console.get_by_role("heading", name="Failed requests")).to_be_visible()
    row = find_row(console, unknown)
    expect(row).to_contain_text(unknown.json()["error"]["message"])
    expect(row).to_contain_text("404")
    expect(row.get_by_role("link")).to_contain_text(f"search {key['id']}")
    expect(row).to_contain_text(NOTE)
    assert console.evaluate("window.clicks") <= MOST_CLICKS

    console.get_by_role("combobox", name="Error code").select_option("")
    expect(find_row(console, invalid)).to_contain_text("bad_request")
    expect(find_row(console, refused)).to_contain_text("not accepted")
    assert MESSAGES[0]["content"] not in console.content()
    assert key["key"] not in console.content()


@pytest.mark.parametrize("page_name", ["history", "invocations"])
def test_other_pages_lead_to_failed_requests(
    console: Page, keyed_system: System, key: dict[str, str], page_name: Literal["history", "invocations"]
):
    unknown, *_ = send_bad_requests(keyed_system, key["key"])
    console.evaluate("name => { location.hash = `#/${name}` }", page_name)

    console.get_by_role("link", name="not_found").first.click()

    expect(console.get_by_role("heading", name="Failed requests")).to_be_visible()
    expect(console.get_by_role("combobox", name="Error code")).to_have_value("not_found")
    expect(find_row(console, unknown)).to_contain_text("nobody")


def test_live_has_the_latest_failed_requests_and_percentiles(console: Page, keyed_system: System, key: dict[str, str]):
    _, invalid, _ = send_bad_requests(keyed_system, key["key"])

    expect(console.get_by_role("region", name="Latest failed requests")).to_contain_text(
        invalid.headers["x-request-id"]
    )
    times = console.get_by_role("region", name="Time of requests in 15 minutes")
    expect(times.get_by_role("columnheader")).to_have_text(
        [
            "Model",
            *(f"{what} {part}" for what in ("first output", "whole") for part in ("P50", "P95", "P99")),
            "requests",
        ]
    )
    expect(times.get_by_role("row", name=OMNI).get_by_role("cell").nth(2)).to_contain_text("s")


@pytest.mark.parametrize("width", [360, 1280], ids=["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_with_failures_break_no_rule_of_axe(
    console: Page, keyed_system: System, key: dict[str, str], scheme: Literal["light", "dark"], width: int
):
    send_bad_requests(keyed_system, key["key"])
    console.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    console.set_viewport_size({"width": width, "height": 800})
    for name, shown in {"live": "Latest failed requests", "failures": "Failed requests, newest first"}.items():
        console.evaluate("name => { location.hash = `#/${name}` }", name)
        region = console.get_by_role("region", name=shown)
        expect(region).to_contain_text("not_found")

        results = Axe().run(console)

        assert results.violations_count == 0, f"{name}: {results.generate_report()}"
        assert console.evaluate("document.documentElement.scrollWidth") <= width
        assert region.evaluate("each => each.scrollWidth <= each.clientWidth")


def test_a_failed_request_is_reached_by_keyboard(console: Page, keyed_system: System, key: dict[str, str]):
    send_bad_requests(keyed_system, key["key"])
    link = console.locator("section.tile", has_text="Rejected requests").get_by_role("link", name="not_found")
    link.focus()

    link.press("Enter")

    expect(console.get_by_role("heading", name="Failed requests")).to_be_visible()
    expect(console.locator("main")).to_be_focused()


def test_alerts_say_their_state_and_what_to_do(console: Page):
    console.get_by_role("link", name="Alerts").click()

    rule = console.get_by_role("article", name="OmnibusErrors")
    expect(rule).to_contain_text("ok since")
    rule.locator("summary", has_text="What to do").press("Enter")
    expect(rule.get_by_text("read the executor's log")).to_be_visible()
    console.wait_for_timeout(6000)  # it is read again, and stays open
    expect(rule.get_by_text("read the executor's log")).to_be_visible()
    expect(console.get_by_role("article", name="OmnibusArenaFull")).to_contain_text("a metric of sidecars")


def test_live_leads_to_alerts_that_fire(console: Page):
    def fire(route: Route) -> None:
        response = route.fetch()
        document = response.json()
        document["data"][0] |= {"state": "firing"}
        route.fulfill(response=response, json=document)

    console.route("**/v1/console/alerts", fire)
    console.reload()

    console.get_by_role("link", name="1 alert", exact=True).click()

    expect(console.get_by_role("heading", name="Firing (1)")).to_be_visible()
