"""The console in a real browser, on a real system."""

import re
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.e2e.console.conftest import DIRECTOR, PAINTER, TOKEN
from tests.e2e.system import OMNI, System

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

LIVE = re.compile("^live$")
#: All pages of the navigation.
PAGES = (
    "live",
    "plan",
    "history",
    "invocations",
    "failures",
    "alerts",
    "executors",
    "deadletters",
    "apps",
    "keys",
    "settings",
    "playground",
    "api",
)
#: One short chat by the page itself; its id.
ASK = """async ([url, model]) => {
    const body = JSON.stringify({ model, max_tokens: 4, messages: [{ role: "user", content: "hello" }] });
    const response = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body });
    return response.headers.get("x-request-id");
}"""
#: Tables that are wider than their place, which a reader has to scroll.
WIDE_TABLES = """[...document.querySelectorAll(".scroll:has(> table)")]
    .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel)"""
Scheme = Literal["light", "dark"]


def send_prompt(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(text)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("article", name="Answer of").first).to_contain_text("total")


# Keys


def test_the_page_asks_for_a_key_and_writes_it_nowhere(anonymous_page: Page):
    dialog = anonymous_page.get_by_role("dialog", name="Sign in")
    expect(dialog).to_be_visible()

    dialog.get_by_label("Admin token").fill(TOKEN)
    dialog.get_by_role("button", name="Sign in").click()

    expect(anonymous_page.locator("#link")).to_have_text(LIVE)
    expect(anonymous_page.get_by_role("region", name=f"Model {OMNI}")).to_be_visible()
    assert TOKEN not in anonymous_page.url
    assert anonymous_page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_a_wrong_key_is_asked_for_again(anonymous_page: Page):
    dialog = anonymous_page.get_by_role("dialog", name="Sign in")
    dialog.get_by_label("Admin token").fill("guessed")
    dialog.get_by_role("button", name="Sign in").click()

    expect(anonymous_page.locator("#link")).to_have_text("locked: sign in")
    expect(dialog).to_contain_text("The gateway does not accept this token or key.")


def test_a_link_with_the_token_opens_the_page_and_leaves_the_address(anonymous_page: Page, system: System):
    anonymous_page.goto("about:blank")
    anonymous_page.goto(f"{system.url}/#token={TOKEN}")

    expect(anonymous_page.locator("#link")).to_have_text(LIVE)
    assert anonymous_page.url == f"{system.url}/console/#/live"
    expect(anonymous_page.get_by_role("dialog", name="Sign in")).to_be_hidden()


def test_a_second_tab_is_signed_in_too(page: Page, system: System):
    other = page.context.new_page()
    other.goto(f"{system.url}/console/")

    expect(other.locator("#link")).to_have_text(LIVE)
    expect(other.get_by_role("dialog", name="Sign in")).to_be_hidden()
    other.close()


def test_the_header_says_who_is_signed_in_and_signs_out_in_all_tabs(page: Page, system: System):
    other = page.context.new_page()
    other.goto(f"{system.url}/console/")
    header = other.get_by_role("banner")
    expect(header.get_by_role("button", name="Signed in: operator", exact=True)).to_be_visible()
    expect(header.get_by_role("button", name="Sign in", exact=True)).to_have_count(0)

    page.get_by_role("banner").get_by_role("button", name="Sign out").click()

    for tab in (page, other):
        expect(tab.get_by_role("dialog", name="Sign in")).to_be_visible()
        expect(tab.locator("#keys")).to_have_text("Sign in")
        expect(tab.locator("#leave")).to_be_hidden()
        expect(tab.get_by_role("region", name=f"Model {OMNI}")).to_have_count(0)
        assert tab.evaluate("sessionStorage.length") == 0
    other.close()


def test_a_refused_token_signs_nobody_in(anonymous_page: Page):
    dialog = anonymous_page.get_by_role("dialog", name="Sign in")
    dialog.get_by_label("Admin token").fill("guessed")
    dialog.get_by_role("button", name="Sign in").click()

    expect(dialog).to_contain_text("The gateway does not accept this token or key.")
    expect(anonymous_page.locator("#keys")).to_have_text("Sign in")
    expect(anonymous_page.locator("#leave")).to_be_hidden()


# What is so


def test_the_map_shows_options_and_what_comes(page: Page, system: System):
    model = page.get_by_role("region", name=f"Model {OMNI}")
    expect(model).to_contain_text("1/1 up")

    page.evaluate(
        ASK,
        [f"{system.url}/v1/chat/completions", OMNI],
    )

    expect(model.get_by_role("article", name="Option M")).to_contain_text("1/1 up")
    expect(model.get_by_role("listitem").filter(has_text="thinker")).to_be_visible()
    expect(model.locator("svg .line")).to_have_count(1)
    expect(page.get_by_role("region", name="Requests by model and type")).to_contain_text("thinker")


def test_the_map_of_an_idle_model_is_folded_until_somebody_opens_it(page: Page):
    model = page.get_by_role("region", name=f"Model {DIRECTOR}")
    station = model.get_by_role("article", name="Option M")
    expect(model.get_by_role("button", name="Show map")).to_have_attribute("aria-expanded", "false")
    expect(station).to_be_hidden()

    model.get_by_role("button", name="Show map").press("Enter")

    expect(model.get_by_role("button", name="Hide map")).to_have_attribute("aria-expanded", "true")
    expect(station).to_contain_text("text_encoder + vae_encoder + dit + vae + audio_vae")


def test_the_plan_says_its_epoch_options_and_paths(page: Page):
    page.get_by_role("link", name="Plan").click()

    expect(page.get_by_role("heading", name="Plan of epoch")).to_be_visible()
    omni = page.get_by_role("region", name=f"Plan of {OMNI}")
    expect(omni).to_contain_text("1 of 1 up")
    expect(omni.get_by_role("region", name=f"{OMNI}: options and running executors")).to_contain_text(
        "vision + audio + thinker + talker + vocoder"
    )
    expect(omni.get_by_role("region", name=f"{OMNI}: paths by request type")).to_contain_text("100 %")
    expect(page.get_by_role("region", name="Epochs that are kept")).to_contain_text("current")


def test_a_gateway_that_is_away_is_said_and_found_again(page: Page):
    page.route("**/v1/console/events", lambda route: route.abort())
    page.reload()
    expect(page.locator("#link")).to_have_text("not connected, trying again")

    page.unroute("**/v1/console/events")

    expect(page.locator("#link")).to_have_text(LIVE)


# Asking


def test_a_picture_and_a_question_are_answered_in_text_and_sound(playground: Page):
    playground.get_by_role("combobox", name="Answer").select_option("speech")
    playground.locator("#file").set_input_files(
        {"name": "seen.png", "mimeType": "image/png", "buffer": draw_picture(playground)}
    )
    expect(playground.get_by_role("img", name="seen.png")).to_be_visible()

    send_prompt(playground, "What is this?")

    answer = playground.get_by_role("article", name=f"Answer of {OMNI}")
    expect(answer.locator(".text")).not_to_be_empty()
    expect(answer).to_contain_text("first sound")
    sound = answer.get_by_label("The spoken answer")
    expect(sound).to_be_visible()
    assert sound.evaluate("async each => { await each.play(); return each.duration }") > 0.05
    assert answer.locator("svg.wave rect").count() > 0


def test_the_microphone_is_heard(playground: Page):
    playground.get_by_role("combobox", name="Answer").select_option("text")
    playground.get_by_role("button", name="Microphone").click()
    expect(playground.get_by_text("listening, 1 s")).to_be_visible()
    playground.get_by_role("button", name="Stop recording").click()
    expect(playground.get_by_text("microphone.wav")).to_be_visible()

    send_prompt(playground, "")

    expect(playground.get_by_role("article", name=f"Answer of {OMNI}")).to_contain_text("tokens")
    playground.get_by_role("link", name="what happened").click()
    expect(playground.get_by_role("heading", name="Waterfall")).to_be_visible()
    expect(playground.locator(".waterfall")).to_contain_text("audio")


def test_a_picture_becomes_clearer_while_it_comes(playground: Page):
    playground.get_by_role("combobox", name="Model").select_option(PAINTER)
    playground.get_by_label("Size").fill("64x64")
    playground.get_by_label("Steps").fill("4")

    send_prompt(playground, "a red square")

    picture = playground.get_by_role("img", name="The picture", exact=True)
    expect(picture).to_be_visible()
    assert picture.evaluate("each => each.decode().then(() => each.naturalWidth)") == 64
    expect(playground.get_by_role("article", name=f"Answer of {PAINTER}")).to_contain_text("previews 3")


def test_a_video_is_followed_until_it_can_be_played(playground: Page):
    playground.get_by_role("combobox", name="Model").select_option(DIRECTOR)
    expect(playground.get_by_role("combobox", name="Answer")).to_have_value("video")
    for name, value in {"Size": "64x32", "Seconds": "0.4", "Steps": "2", "Seed": "1"}.items():
        playground.get_by_label(name, exact=True).fill(value)

    send_prompt(playground, "a boat")

    film = playground.get_by_label("The video")
    expect(film).to_be_visible()
    size = """each => new Promise((resolve) => {
        const tell = () => resolve([each.videoWidth, each.videoHeight]);
        each.readyState ? tell() : each.addEventListener("loadedmetadata", tell);
    })"""
    assert film.evaluate(size) == [64, 32]


def test_what_a_user_wrote_stays_text(playground: Page):
    playground.get_by_role("combobox", name="Answer").select_option("text")

    send_prompt(playground, "<img src=x onerror=alert(1)><b>bold</b>")

    question = playground.locator(".question")
    expect(question).to_have_text("<img src=x onerror=alert(1)><b>bold</b>")
    assert question.locator("img, b").count() == 0


def test_a_refusal_is_said_in_the_gateway_s_own_words(playground: Page):
    playground.locator("#file").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"})

    playground.get_by_role("button", name="Send").click()

    expect(playground.get_by_role("alert")).to_contain_text("image")


# Looking back


def test_an_invocation_is_found_shown_and_replayed(playground: Page):
    playground.get_by_role("combobox", name="Answer").select_option("text")
    send_prompt(playground, "remember this")
    href = playground.get_by_role("link", name="what happened").get_attribute("href") or ""
    id = href.rpartition("/")[2]

    playground.get_by_role("link", name="Invocations").click()
    playground.get_by_label("Search").fill(f"{id} done")
    link = playground.get_by_role("link", name=id)
    expect(link).to_be_visible()
    expect(playground.locator("tbody tr")).to_have_count(1)
    link.click()
    expect(playground.locator(".waterfall .phase.run").first).to_be_visible()
    playground.get_by_role("button", name="Replay").click()
    expect(playground.get_by_text("identical")).to_be_visible()
    playground.get_by_role("link", name="side by side").click()

    difference = playground.get_by_role("region", name="Difference")
    expect(difference).to_contain_text("same")
    assert "differs" not in difference.get_by_role("row").filter(has_text=re.compile("^text")).inner_text()


def test_each_node_is_stepped_through_forked_and_laid_side_by_side(page: Page, system: System):
    id = page.evaluate(ASK, [f"{system.url}/v1/chat/completions", OMNI])
    page.evaluate("id => { location.hash = `#/invocations/${id}` }", id)
    tab, node = page.get_by_role("tab", name="thinker"), page.get_by_role("tabpanel", name="thinker")
    expect(node.get_by_role("group", name="messages")).to_contain_text("hello")
    expect(node.get_by_role("definition").filter(has_text="qwen2_5-omni-tiny-")).to_be_visible()

    node.locator("summary", has_text="Fork").press("Enter")
    node.get_by_label("Change").select_option("nothing but the seed")
    node.get_by_role("button", name="Fork from thinker").press("Enter")
    expect(node.get_by_role("alert")).to_contain_text("a fork changes something")
    node.get_by_label("Change").select_option("params.max_tokens")
    expect(node.get_by_role("textbox", name="To")).to_have_value("4")
    node.get_by_role("textbox", name="To").fill("2")
    node.get_by_role("button", name="Fork from thinker").press("Enter")

    outputs = node.get_by_role("region", name="Outputs")
    expect(outputs).to_contain_text("differs")
    expect(node.get_by_role("heading", name="The other one")).to_be_visible()
    expect(node.get_by_role("group", name="params").nth(1)).to_contain_text('"max_tokens": 2')
    expect(tab).to_be_focused()
    expect(page.get_by_role("region", name="Difference")).to_contain_text("differs")


def test_an_invocation_that_is_not_there_is_said(page: Page):
    page.evaluate("location.hash = '#/invocations/nobody-0-0'")

    expect(page.get_by_role("alert")).to_contain_text("no record")


# For everybody


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)], ids=["light", "dark", "phone"]
)
def test_no_page_breaks_a_rule_of_axe(page: Page, system: System, scheme: Scheme, width: int):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 800})
    rules = Axe()

    for name in [*PAGES, *detail_pages(page, system)]:
        page.evaluate("name => { location.hash = `#/${name}` }", name)
        expect(page.locator("main .room").first).not_to_be_empty()
        expect(page.locator("main :is(.card, .note)").first).to_be_attached()

        results = rules.run(page)

        assert results.violations_count == 0, f"{name}: {results.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(WIDE_TABLES) == [], name


def detail_pages(page: Page, system: System) -> list[str]:
    """Pages of a completed invocation, compared with another, and of an executor."""
    id, other = (page.evaluate(ASK, [f"{system.url}/v1/chat/completions", OMNI]) for _ in range(2))
    return [f"invocations/{id}?with={other}", f"executors/{min(system.executors)}"]


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


def draw_picture(page: Page) -> bytes:
    """A PNG file, painted by the browser."""
    data = page.evaluate(
        """async () => {
            const canvas = new OffscreenCanvas(64, 48);
            const context = canvas.getContext("2d");
            context.fillStyle = "rebeccapurple";
            context.fillRect(8, 8, 40, 30);
            return [...new Uint8Array(await (await canvas.convertToBlob()).arrayBuffer())];
        }"""
    )
    return bytes(data)
