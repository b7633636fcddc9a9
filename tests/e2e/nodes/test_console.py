"""Nodes in the console, in a real browser."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.console.browser import find_executable
from tests.e2e.console.conftest import PATIENCE
from tests.e2e.nodes.conftest import NODES
from tests.e2e.nodes.test_views import ask_apart, first_state
from tests.e2e.system import System

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

EVENTS = "text/event-stream"


@pytest.fixture
async def crossing_id(nodes: System) -> str:
    """Id of a request that crossed from node to node."""
    return await ask_apart(nodes)


@pytest.fixture
async def cut_state(nodes: System, crossing_id: str) -> str:
    """State event of a gateway whose second node is cut off."""
    async with nodes.http() as http:
        state = await first_state(http, nodes)
    source, reader = nodes.node_name(0), nodes.node_name(1)
    for node in state["nodes"]:
        node["state"] = "gone" if node["node"] == reader else "ready"
    lost_link = {"source": source, "reader": reader, "nbytes": 0, "seconds": 0, "rate": None, "unreachable": True}
    return f"data: {json.dumps({**state, 'links': [{**lost_link, 'transport': 'tcp'}]})}\n\n"


@pytest.fixture
def page(nodes: System) -> Iterator[Page]:
    """The console in a tab, with its key."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_executable(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        tab.set_default_timeout(PATIENCE)
        faults: list[str] = []
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.goto(f"{nodes.url}/console/")
        tab.evaluate("token => sessionStorage.setItem('omnibus.admin', token)", nodes.state.admin_token)
        tab.reload()
        yield tab
        browser.close()
    assert faults == []


def test_nodes_are_drawn_with_their_executors_and_links(crossing_id: str, page: Page, nodes: System):
    region = page.get_by_label("Nodes", exact=True)
    for node in range(NODES):
        box = region.get_by_role("article", name=f"Node {nodes.node_name(node)}", exact=True)
        expect(box).to_contain_text("ready")
        expect(box.get_by_role("listitem").first).to_contain_text("in flight")
    expect(region.locator("svg .crossing").first).to_be_attached()
    expect(region.get_by_role("region", name="Links between nodes")).to_contain_text("ok")


def test_a_pair_that_cannot_be_reached_is_red_and_said(cut_state: str, page: Page, nodes: System):
    region = page.get_by_label("Nodes", exact=True)
    expect(region).to_be_visible()

    page.route("**/v1/console/events", lambda route: route.fulfill(body=cut_state, content_type=EVENTS))
    page.reload()

    reader, source = nodes.node_name(1), nodes.node_name(0)
    expect(page.get_by_role("status").filter(has_text=f"{reader} cannot reach node {source}")).to_be_visible()
    crossing = region.locator('svg .crossing[data-state="bad"]')
    expect(crossing).to_contain_text("unreachable")
    red = page.evaluate("getComputedStyle(document.querySelector('.note[data-state=bad]')).color")
    assert crossing.locator("path").first.evaluate("each => getComputedStyle(each).stroke") == red
    expect(region.get_by_role("article", name=f"Node {reader}", exact=True)).to_contain_text("gone")


def test_an_invocation_says_which_edge_crossed_and_what_that_cost(crossing_id: str, page: Page):
    page.evaluate("id => { location.hash = `#/invocations/${id}` }", crossing_id)

    crossing_id = page.get_by_role("region", name="Between nodes")
    expect(crossing_id).to_contain_text("embedding")
    expect(crossing_id).to_contain_text("→")
    expect(page.locator("svg .edge.remote")).to_have_count(1)
