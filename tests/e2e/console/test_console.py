"""The console in a real browser, on a real system."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.console.conftest import TOKEN
from tests.e2e.system import OMNI, System

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow]

LIVE = re.compile("^live$")
SEEN = (Path(__file__).parent / "seen.js").read_text()


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(text)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("article", name="Answer of").first).to_contain_text("total")


# Keys


def test_the_page_asks_for_a_key_and_keeps_it_in_the_tab_alone(stranger: Page):
    dialog = stranger.get_by_role("dialog", name="Keys")
    expect(dialog).to_be_visible()

    dialog.get_by_label("Admin token").fill(TOKEN)
    dialog.get_by_role("button", name="Use them").click()

    expect(stranger.locator("#link")).to_have_text(LIVE)
    expect(stranger.get_by_role("region", name=f"Model {OMNI}")).to_be_visible()
    assert TOKEN not in stranger.url
    assert stranger.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_a_wrong_key_is_asked_for_again(stranger: Page):
    dialog = stranger.get_by_role("dialog", name="Keys")
    dialog.get_by_label("Admin token").fill("guessed")
    dialog.get_by_role("button", name="Use them").click()

    expect(stranger.locator("#link")).to_have_text("closed: give a key")
    expect(dialog).to_contain_text("This gateway knows no such token or key.")


def test_a_link_with_the_token_opens_the_page_and_leaves_the_address(stranger: Page, system: System):
    stranger.goto("about:blank")
    stranger.goto(f"{system.url}/#token={TOKEN}")

    expect(stranger.locator("#link")).to_have_text(LIVE)
    assert stranger.url == f"{system.url}/console/#/live"
    expect(stranger.get_by_role("dialog", name="Keys")).to_be_hidden()


# What is so


def test_the_map_shows_options_and_what_comes(page: Page, system: System):
    model = page.get_by_role("region", name=f"Model {OMNI}")
    expect(model.get_by_role("article", name="Option M")).to_contain_text("1/1 up")

    page.evaluate(
        """async ([url, model]) => {
            const body = JSON.stringify({ model, max_tokens: 4, messages: [{ role: "user", content: "hello" }] });
            const headers = { "content-type": "application/json" };
            for (let count = 0; count < 3; count++) await fetch(url, { method: "POST", headers, body });
        }""",
        [f"{system.url}/v1/chat/completions", OMNI],
    )

    expect(model.get_by_role("listitem").filter(has_text="thinker")).to_be_visible()
    expect(model.locator("svg .line")).to_have_count(1)
    expect(page.get_by_role("region", name="Requests by model and type")).to_contain_text("thinker")


def test_the_plan_says_its_epoch_options_and_paths(page: Page):
    page.get_by_role("link", name="Plan").click()

    expect(page.get_by_role("heading", name="Plan of epoch")).to_be_visible()
    expect(page.get_by_role("region", name="Options")).to_contain_text("vision + audio + thinker + talker + vocoder")
    expect(page.get_by_role("region", name="Paths by request type")).to_contain_text("100 %")
    expect(page.get_by_role("region", name="Epochs that are kept")).to_contain_text("current")


def test_a_gateway_that_is_away_is_said_and_found_again(page: Page):
    page.route("**/v1/console/events", lambda route: route.abort())
    page.reload()
    expect(page.locator("#link")).to_have_text("not connected, trying again")

    page.unroute("**/v1/console/events")

    expect(page.locator("#link")).to_have_text(LIVE)


# Asking


def test_a_picture_and_a_question_are_answered_in_text_and_sound(asking: Page):
    asking.get_by_role("combobox", name="Answer").select_option("speech")
    asking.locator("#file").set_input_files({"name": "seen.png", "mimeType": "image/png", "buffer": picture(asking)})
    expect(asking.get_by_role("img", name="seen.png")).to_be_visible()

    send(asking, "What is this?")

    answer = asking.get_by_role("article", name=f"Answer of {OMNI}")
    expect(answer.locator(".text")).not_to_be_empty()
    expect(answer).to_contain_text("first sound")
    sound = answer.get_by_label("The spoken answer")
    expect(sound).to_be_visible()
    assert sound.evaluate("async each => { await each.play(); return each.duration }") > 0.05
    assert answer.locator("svg.wave rect").count() > 0


def test_the_microphone_is_heard(asking: Page):
    asking.get_by_role("combobox", name="Answer").select_option("text")
    asking.get_by_role("button", name="Microphone").click()
    expect(asking.get_by_text("listening, 1 s")).to_be_visible()
    asking.get_by_role("button", name="Stop recording").click()
    expect(asking.get_by_text("microphone.wav")).to_be_visible()

    send(asking, "")

    expect(asking.get_by_role("article", name=f"Answer of {OMNI}")).to_contain_text("tokens")
    asking.get_by_role("link", name="what happened").click()
    expect(asking.get_by_role("heading", name="Waterfall")).to_be_visible()
    expect(asking.locator(".waterfall")).to_contain_text("audio")


def test_a_picture_becomes_clearer_while_it_comes(asking: Page):
    asking.get_by_role("combobox", name="Model").select_option("qwen-image-tiny")
    asking.get_by_label("Size").fill("64x64")
    asking.get_by_label("Steps").fill("4")

    send(asking, "a red square")

    picture = asking.get_by_role("img", name="The picture", exact=True)
    expect(picture).to_be_visible()
    assert picture.evaluate("each => each.decode().then(() => each.naturalWidth)") == 64
    expect(asking.get_by_role("article", name="Answer of qwen-image-tiny")).to_contain_text("previews 3")


def test_what_a_user_wrote_stays_text(asking: Page):
    asking.get_by_role("combobox", name="Answer").select_option("text")

    send(asking, "<img src=x onerror=alert(1)><b>bold</b>")

    question = asking.locator(".question")
    expect(question).to_have_text("<img src=x onerror=alert(1)><b>bold</b>")
    assert question.locator("img, b").count() == 0


def test_a_refusal_is_said_in_the_gateway_s_own_words(asking: Page):
    asking.locator("#file").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"})

    asking.get_by_role("button", name="Send").click()

    expect(asking.get_by_role("alert")).to_contain_text("image")


# Looking back


def test_an_invocation_is_found_shown_and_replayed(asking: Page):
    asking.get_by_role("combobox", name="Answer").select_option("text")
    send(asking, "remember this")
    href = asking.get_by_role("link", name="what happened").get_attribute("href") or ""
    id = href.rpartition("/")[2]

    asking.get_by_role("link", name="Invocations").click()
    asking.get_by_label("Search").fill(f"{id} done")
    link = asking.get_by_role("link", name=id)
    expect(link).to_be_visible()
    expect(asking.locator("tbody tr")).to_have_count(1)
    link.click()
    expect(asking.locator(".waterfall .phase.run").first).to_be_visible()
    asking.get_by_role("button", name="Replay").click()
    expect(asking.get_by_text("identical")).to_be_visible()
    asking.get_by_role("link", name="side by side").click()

    difference = asking.get_by_role("region", name="Difference")
    expect(difference).to_contain_text("same")
    assert "differs" not in difference.get_by_role("row").filter(has_text=re.compile("^text")).inner_text()


def test_an_invocation_that_is_not_there_is_said(page: Page):
    page.evaluate("location.hash = '#/invocations/nobody-0-0'")

    expect(page.get_by_role("alert")).to_contain_text("no record")


# For everybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["live", "plan", "invocations", "playground"])
def test_texts_have_contrast_and_things_to_press_have_names(page: Page, scheme: str, name: str):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.evaluate("name => { location.hash = `#/${name}` }", name)
    expect(page.locator(".card").first).to_be_visible()

    found = page.evaluate(SEEN)

    assert found == {"faint": [], "nameless": []}


@pytest.mark.parametrize("name", ["live", "plan", "invocations", "playground"])
def test_a_phone_shows_every_page_in_its_width(page: Page, name: str):
    page.set_viewport_size({"width": 360, "height": 740})
    page.evaluate("name => { location.hash = `#/${name}` }", name)
    expect(page.locator(".card").first).to_be_visible()

    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_all_of_it_is_reached_by_keyboard(page: Page):
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for name in ("Omnibus", "Live", "Plan"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()

    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="Plan of epoch")).to_be_visible()
    expect(page.get_by_role("link", name="Plan")).to_have_attribute("aria-current", "page")
    expect(page.locator("main")).to_be_focused()


def test_nothing_moves_for_who_asked_for_that(page: Page):
    page.emulate_media(reduced_motion="reduce")
    expect(page.get_by_role("region", name=f"Model {OMNI}")).to_be_visible()

    assert page.evaluate("document.getAnimations().filter(each => each.playState === 'running').length") == 0


def picture(page: Page) -> bytes:
    """A PNG file, painted by the browser."""
    made = page.evaluate(
        """async () => {
            const canvas = new OffscreenCanvas(64, 48);
            const context = canvas.getContext("2d");
            context.fillStyle = "rebeccapurple";
            context.fillRect(8, 8, 40, 30);
            return [...new Uint8Array(await (await canvas.convertToBlob()).arrayBuffer())];
        }"""
    )
    return bytes(made)
