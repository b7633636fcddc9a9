"""Pages for operators in a real browser, on a real system."""

import io
import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from omnibus_models.world import audio_oracle, image_oracle
from tests.e2e.console.conftest import TOKEN
from tests.e2e.system import OMNI, System

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

WAV_HEADER_BYTES = 44
#: A chat that is begun and left alone, of which nothing is read.
BEGIN = """([url, model]) => {
    const messages = [{ role: "user", content: "go on and on" }];
    const body = JSON.stringify({ model, max_tokens: 3000, ignore_eos: true, stream: true, messages });
    window.left = new AbortController();
    const headers = { "content-type": "application/json" };
    return fetch(url, { method: "POST", headers, body, signal: window.left.signal }).then((each) => each.headers.get("x-request-id"));
}"""


def open_page(page: Page, name: str) -> None:
    page.evaluate("name => { location.hash = `#/${name}` }", name)


def send_chat(page: Page, system: System) -> None:
    answer = page.request.post(
        f"{system.url}/v1/chat/completions",
        data={"model": OMNI, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]},
    )
    assert answer.ok


def test_the_history_has_what_came_and_what_each_stage_did(page: Page, system: System):
    nobody = {"model": "nobody", "messages": [{"role": "user", "content": "hello"}]}
    assert page.request.post(f"{system.url}/v1/chat/completions", data=nobody).status == 404
    open_page(page, "history")
    stages = page.get_by_role("region", name="Stages")
    for _ in range(12):  # what a stage did before it was seen the first time is not counted
        send_chat(page, system)
        page.wait_for_timeout(1000)

    expect(page.get_by_role("region", name="Requests by type")).to_contain_text(OMNI)
    expect(stages).to_contain_text("thinker")
    expect(page.get_by_role("region", name="Errors by code")).to_contain_text("no model not_found")
    choices = page.get_by_role("combobox", name="Model").locator("option").all_inner_texts()
    assert choices[0] == "all models"
    assert "" not in choices  # what names no model that there is cannot be chosen
    expect(page.get_by_role("region", name="Time to first output").get_by_text(re.compile("^, "))).to_have_count(0)
    plot = page.get_by_role("slider", name="Requests per second")
    plot.focus()
    page.keyboard.press("End")
    before = plot.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowLeft")
    assert plot.get_attribute("aria-valuetext") != before
    assert "came" in (before or "")

    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="Invocations")).to_be_visible()
    expect(page.get_by_role("combobox", name="Time")).to_have_value("fixed")


def test_an_executor_says_where_it_runs_and_what_it_wrote(page: Page):
    page.get_by_role("link", name="Executors").click()
    row = page.get_by_role("row").filter(has_text="vocoder")
    expect(row).to_contain_text("MiB")
    expect(row).to_contain_text("cpu")

    row.get_by_role("link").click()

    expect(page.get_by_role("region", name="Stages")).to_contain_text("talker")
    expect(page.get_by_role("region", name=f"Log of {OMNI}/M")).to_contain_text("ready: vision+audio")


def test_settings_are_found_by_name_and_hold_no_secret(page: Page):
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("searchbox", name="Search settings").fill("admin_token")

    expect(page.get_by_text("OMNIBUS_GATEWAY_ADMIN_TOKEN", exact=True)).to_be_visible()
    expect(page.get_by_text("(set)")).to_be_visible()
    assert TOKEN not in page.content()


@pytest.mark.parametrize(
    ("name", "text"),
    [("keys", "Requests need no key"), ("apps", "No app is registered"), ("deadletters", "There are none")],
)
def test_where_there_is_nothing_the_page_says_so(page: Page, name: str, text: str):
    open_page(page, name)

    expect(page.get_by_text(text)).to_be_visible()


def test_a_key_is_made_shown_once_and_revoked(page: Page):
    open_page(page, "keys")
    page.locator("summary", has_text="New key").press("Enter")
    page.get_by_label("Tenant").fill("no tenant!")
    page.get_by_label("Tenant").press("Enter")
    expect(page.get_by_role("alert").filter(has_text="is not a tenant name")).to_be_visible()

    page.get_by_label("Tenant").fill("search")
    page.get_by_label("Requests per second").fill("10")
    page.get_by_role("button", name="Create key").click()

    expect(page.get_by_label("The new key of search")).to_have_value(re.compile("^omni-"))
    row = page.get_by_role("region", name="Keys of search").get_by_role("row").filter(has_text="store")
    expect(row).to_contain_text("10")

    page.get_by_role("button", name="Done").click()
    row.get_by_role("button", name="Revoke").press("Enter")
    page.get_by_role("dialog", name="Revoke").get_by_role("button", name="Revoke").press("Enter")

    expect(row).to_be_hidden()
    expect(page.get_by_label("The new key of search")).to_have_count(0)


def test_the_api_is_shown_and_sent_from_the_page(page: Page, system: System):
    page.goto(f"{system.url}/docs")
    page.get_by_role("searchbox", name="Search operations").fill("get /v1/models/{model}")
    page.get_by_text("/v1/models/{model}", exact=True).click()
    page.get_by_label("model", exact=True).fill(OMNI)

    page.get_by_role("button", name="Send").click()

    expect(page.get_by_role("region", name="Response", exact=True)).to_contain_text(f'"id": "{OMNI}"')


def test_the_fields_of_a_request_open_where_they_are(page: Page, system: System):
    open_page(page, "api")
    page.get_by_role("searchbox", name="Search operations").fill("/v1/videos")
    page.get_by_text("/v1/videos", exact=True).first.click()

    table = page.get_by_role("region", name="Fields of").first
    expect(table).to_contain_text("prompt")
    expect(table).to_contain_text("required")


def test_nodes_are_compared_by_component(page: Page):
    comparison = page.evaluate(
        """async () => {
            const { pairs } = await import("/console/compare.js");
            const nodes = (...names) => names.map((component, at) => ({ component, at }));
            return pairs(nodes("vision", "thinker", "vocoder"), nodes("thinker", "audio", "thinker"))
                .map(([name, one, other]) => [name, one?.at ?? null, other?.at ?? null]);
        }"""
    )

    assert comparison == [
        ["vision", 0, None], ["thinker", 1, 0], ["vocoder", 2, None], ["audio", None, 1], ["thinker 2", None, 2]
    ]  # fmt: skip


def test_a_running_waterfall_shows_the_time_since_the_request_came(page: Page, system: System):
    id = page.evaluate(BEGIN, [f"{system.url}/v1/chat/completions", OMNI])
    open_page(page, f"invocations/{id}")

    expect(page.get_by_text("Running for").first).to_be_visible()
    expect(page.locator(".waterfall .phase.open").first).to_be_visible()
    labels = page.locator(".waterfall .axis .bars span").all_inner_texts()
    assert len(set(labels)) == len(labels)

    page.evaluate("window.left.abort()")
    expect(page.get_by_text("cancelled")).to_be_visible()


@pytest.mark.parametrize(
    ("most", "format", "counts", "labels"),
    [
        (0, "whole", True, ["1", "0"]),
        (1, "whole", True, ["1", "0"]),
        (2, "whole", True, ["2", "1", "0"]),
        (4, "whole", True, ["6", "4", "2", "0"]),
        (16, "whole", True, ["30", "20", "10", "0"]),
        (0.01, "rate", False, ["0.01", "0"]),
        (2.5, "rate", False, ["3", "2", "1", "0"]),
    ],
)
def test_an_axis_has_no_label_twice(page: Page, most: float, format: str, counts: bool, labels: list[str]):
    tick_labels = page.evaluate(
        """async ([most, format, counts]) => {
            const { axis } = await import("/console/chart.js");
            return axis(most, (await import("/console/format.js"))[format], counts).labels;
        }""",
        [most, format, counts],
    )

    assert tick_labels == labels


def test_the_chart_of_failures_counts_in_whole_numbers(page: Page, system: System):
    send_chat(page, system)
    open_page(page, "history")

    labels = page.get_by_role("region", name="Failed and refused").locator(".scale span")

    expect(labels.first).to_be_attached()
    texts = labels.all_inner_texts()
    assert len(set(texts)) == len(texts)
    assert all(label.isdigit() for label in texts)


def test_rejected_requests_are_shown_with_their_codes(page: Page, system: System):
    wrong = {"model": OMNI, "max_tokens": -5, "messages": [{"role": "user", "content": "hello"}]}
    assert page.request.post(f"{system.url}/v1/chat/completions", data=wrong).status == 400
    open_page(page, "live")
    tile = page.locator("section.tile", has_text="Rejected requests")

    expect(tile.locator("small")).to_contain_text("bad_request", timeout=60_000)
    assert int(tile.locator("strong").inner_text()) > 0


def test_the_letters_of_a_path_are_explained_where_they_appear(page: Page, system: System):
    send_chat(page, system)
    explained = "M runs vision + audio + thinker + talker + vocoder"
    open_page(page, "invocations")
    expect(page.get_by_text("A path names the options")).to_contain_text(f"{OMNI}: {explained}")

    page.get_by_role("row").filter(has_text=OMNI).first.get_by_role("link").click()

    expect(page.get_by_role("definition").filter(has_text=explained)).to_be_visible()
    open_page(page, "plan")
    expect(page.get_by_text("A path names the options").first).to_be_visible()


def test_an_example_brings_its_question_picture_and_sound(playground: Page):
    examples = playground.get_by_role("group", name="Examples")
    expect(examples.get_by_role("button")).to_have_count(4)

    examples.get_by_role("button", name="What do you see and hear?").click()

    expect(playground.get_by_role("textbox", name="Prompt")).to_have_value("What do you see and hear?")
    expect(playground.get_by_role("img", name="example.png")).to_be_visible()
    expect(playground.get_by_label("example.wav", exact=True)).to_be_visible()
    playground.get_by_role("button", name="Send").click()
    expect(playground.get_by_role("article", name=f"Answer of {OMNI}")).to_contain_text("total")


def test_examples_are_what_the_small_world_knows(playground: Page):
    picture, sound = playground.evaluate(
        """async () => {
            const { picture, tones } = await import("/console/examples.js");
            const blobs = [await picture(), tones(["low", "high"])];
            return Promise.all(blobs.map(async (each) => [...new Uint8Array(await each.arrayBuffer())]));
        }"""
    )

    scene = image_oracle.recognize_scene(np.asarray(Image.open(io.BytesIO(bytes(picture))).convert("RGB")))
    assert scene is not None
    assert scene.caption == "two red circles on blue"
    samples = np.frombuffer(bytes(sound[WAV_HEADER_BYTES:]), "<i2") / 32767
    assert audio_oracle.recognize_tones(samples) == ["low", "high"]


def test_values_of_which_nothing_was_kept_are_neither_the_same_nor_different(page: Page, system: System):
    body = {"model": OMNI, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
    body |= {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    ids = []
    for seed in (1, 2):
        answer = page.request.post(f"{system.url}/v1/chat/completions", data={**body, "seed": seed})
        assert answer.ok
        ids.append(answer.headers["x-request-id"])

    page.evaluate("([id, other]) => { location.hash = `#/invocations/${id}?with=${other}` }", ids)

    outputs = page.get_by_role("tabpanel", name="thinker").get_by_role("region", name="Outputs")
    expect(outputs.get_by_text("not kept").first).to_be_visible()
    expect(outputs.get_by_role("heading", name="rows")).to_have_text(re.compile(r"^rows\s*$"))
    expect(outputs.get_by_role("heading", name="text")).to_have_text(re.compile(r"^text\s*(same|differs)$"))
