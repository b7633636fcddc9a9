"""The playground as a chat: conversations, edits, two models side by side, records below answers, and errors."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.console.conftest import PAINTER
from tests.e2e.console.test_console import Scheme, draw_picture
from tests.e2e.system import OMNI, VL

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

CHATS = "**/v1/chat/completions"
ENDLESS = {"max_tokens": 3000, "ignore_eos": True}
#: Where the answers of a turn are, at one moment: the page scrolls while they grow.
BOXES = "turn => [...turn.querySelectorAll('article.answer')].map((each) => each.getBoundingClientRect().toJSON())"
#: Milliseconds within which an answer must stop.
STOP_WITHIN = 5_000


@pytest.fixture
def writer(playground: Page) -> Page:
    """The playground with an omni model that answers in text."""
    playground.get_by_role("combobox", name="Answer").select_option("text")
    return playground


def prompt_of(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Prompt")


def ask_by_keyboard(page: Page, text: str) -> Locator:
    """Send ``text`` with Enter and return its turn when all answers have ended."""
    prompt_of(page).fill(text)
    prompt_of(page).press("Enter")
    turn = page.get_by_role("group", name="Turn").last
    expect(turn.locator(".question p")).to_have_text(text)
    for answer in turn.get_by_role("article", name="Answer of").all():
        expect(answer).to_contain_text("total")
    return turn


def record_chats(page: Page, **changes: Any) -> list[dict[str, Any]]:
    """List the bodies of chats that the page sends from now on, which the gateway gets with ``changes``."""
    bodies: list[dict[str, Any]] = []

    def note(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        route.continue_(post_data=json.dumps(bodies[-1] | changes))

    page.route(CHATS, note)
    return bodies


def reject_with(status: int, error: dict[str, Any]) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json={"error": error})


def texts_of(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["role"], each["content"]) for each in messages]


def test_a_conversation_is_sent_with_its_turns_and_reads_from_top_to_bottom(writer: Page):
    bodies = record_chats(writer)

    first = ask_by_keyboard(writer, "hello")
    second = ask_by_keyboard(writer, "and then")

    answer = writer.get_by_role("group", name="Turn 1").locator(".text").inner_text()
    assert texts_of(bodies[0]["messages"]) == [("user", "hello")]
    assert [role for role, _ in texts_of(bodies[1]["messages"])] == ["user", "assistant", "user"]
    assert texts_of(bodies[1]["messages"])[1][1].strip() == answer.strip()
    tops = [each.bounding_box() or {} for each in (first.first, second, prompt_of(writer))]
    assert writer.get_by_role("group", name="Turn").count() == 2
    assert [box["y"] for box in tops] == sorted(box["y"] for box in tops)
    expect(prompt_of(writer)).to_be_focused()


def test_an_image_stays_in_the_conversation_with_later_messages(writer: Page):
    bodies = record_chats(writer)
    writer.locator("#file").set_input_files(
        {"name": "seen.png", "mimeType": "image/png", "buffer": draw_picture(writer)}
    )
    expect(writer.get_by_role("img", name="seen.png")).to_be_visible()
    ask_by_keyboard(writer, "What is this?")

    ask_by_keyboard(writer, "Which colour?")

    parts = bodies[1]["messages"][0]["content"]
    assert [each["type"] for each in parts] == ["image_url", "text"]
    expect(writer.locator(".question").first.get_by_role("img", name="seen.png")).to_be_visible()
    expect(writer.get_by_role("list", name="Attached").get_by_role("listitem")).to_have_count(0)


def test_an_edited_message_drops_what_follows_and_undo_restores_it(writer: Page):
    ask_by_keyboard(writer, "one")
    ask_by_keyboard(writer, "two")
    bodies = record_chats(writer)

    writer.get_by_role("button", name="Edit", exact=True).first.press("Enter")
    edited = writer.get_by_role("textbox", name="Edited message")
    expect(edited).to_be_focused()
    expect(edited).to_have_value("one")
    edited.fill("three")
    edited.press("Enter")

    questions = writer.locator(".question p")
    expect(questions).to_have_text(["three"])
    expect(writer.get_by_text("Edited. 1 later turn removed.")).to_be_visible()
    expect(writer.get_by_role("article", name="Answer of")).to_contain_text("total")
    assert [texts_of(each["messages"]) for each in bodies] == [[("user", "three")]]
    writer.get_by_role("button", name="Undo").press("Enter")
    expect(questions).to_have_text(["one", "two"])
    ask_by_keyboard(writer, "four")
    assert [text for role, text in texts_of(bodies[1]["messages"]) if role == "user"] == ["one", "two", "four"]


def test_an_edit_is_left_with_escape(writer: Page):
    ask_by_keyboard(writer, "one")
    writer.get_by_role("button", name="Edit", exact=True).press("Enter")

    writer.get_by_role("textbox", name="Edited message").press("Escape")

    expect(writer.get_by_role("button", name="Edit", exact=True)).to_be_focused()
    expect(writer.locator(".question p")).to_have_text(["one"])


def test_a_new_conversation_begins_with_examples_and_can_be_undone(writer: Page):
    ask_by_keyboard(writer, "one")

    writer.get_by_role("button", name="New conversation").press("Enter")

    expect(writer.get_by_role("heading", name="Ask a model")).to_be_visible()
    expect(prompt_of(writer)).to_be_focused()
    writer.get_by_role("button", name="Undo").click()
    expect(writer.locator(".question p")).to_have_text(["one"])


def test_a_running_answer_stops_by_button_and_by_escape(writer: Page):
    record_chats(writer, **ENDLESS)
    for stop in (lambda: writer.get_by_role("button", name="Stop", exact=True).click(), stop_by_escape(writer)):
        prompt_of(writer).fill("go on")
        prompt_of(writer).press("Enter")
        answer = writer.get_by_role("article", name="Answer of").last
        expect(answer.locator(".text")).not_to_be_empty()

        stop()

        expect(answer.locator(".badge")).to_have_text("stopped", timeout=STOP_WITHIN)
        expect(writer.get_by_role("button", name="Send", exact=True)).to_be_visible()
        expect(answer.get_by_role("button", name="Try again")).to_be_visible()


def stop_by_escape(page: Page) -> Callable[[], None]:
    return lambda: prompt_of(page).press("Escape")


def test_two_models_answer_side_by_side_at_the_same_time(writer: Page):
    ask_by_keyboard(writer, "hello")
    bodies = record_chats(writer, **ENDLESS)
    writer.get_by_role("combobox", name="Compare with").select_option(VL)
    prompt_of(writer).fill("go on")
    prompt_of(writer).press("Enter")
    turn = writer.get_by_role("group", name="Turn 2")
    answers = [turn.get_by_role("article", name=f"Answer of {model}") for model in (OMNI, VL)]

    for answer in answers:
        expect(answer.locator("[aria-busy] .text")).not_to_be_empty()
    expect(turn.locator("[aria-busy]")).to_have_count(2)
    left, right = turn.evaluate(BOXES)
    assert (left["y"], left["right"] <= right["x"]) == (right["y"], True)
    prompt_of(writer).press("Escape")

    expect(turn.get_by_text("stopped", exact=True).first).to_be_visible()
    assert {each["model"] for each in bodies} == {OMNI, VL}
    assert len({json.dumps(each["messages"]) for each in bodies}) == 1
    writer.set_viewport_size({"width": 360, "height": 740})
    left, right = turn.evaluate(BOXES)
    assert left["bottom"] <= right["y"]


def test_only_models_with_the_same_output_are_compared(writer: Page):
    second = writer.get_by_role("combobox", name="Compare with")
    assert second.locator("option").all_inner_texts() == ["no other model", *sorted([OMNI, VL])]

    writer.get_by_role("combobox", name="Model").select_option(PAINTER)

    assert second.locator("option").all_inner_texts() == ["no other model", PAINTER]


def test_each_answer_has_its_request_its_price_and_its_waterfall(writer: Page):
    reads: list[str] = []
    writer.on("request", lambda request: reads.append(request.url) if "/v1/invocations/" in request.url else None)
    answer = ask_by_keyboard(writer, "hello").get_by_role("article", name="Answer of")
    link = answer.get_by_role("link", name="what happened")
    id = (link.get_attribute("href") or "").rpartition("/")[2]
    expect(link.locator("code")).to_have_text(id)
    expect(answer).to_contain_text(re.compile(r"price .*GPU s"))
    assert reads == []

    answer.locator("summary", has_text="Waterfall").press("Enter")

    expect(answer.locator(".waterfall .phase.run").first).to_be_visible()
    assert reads[0].endswith(f"/v1/invocations/{id}")
    link.click()
    expect(writer.get_by_role("heading", level=1)).to_contain_text(id)
    writer.get_by_role("link", name="Playground").click()
    expect(writer.locator(".question p")).to_have_text(["hello"])


def test_a_price_has_its_currency(writer: Page):
    price = writer.evaluate(
        """async () => {
            const { priceText } = await import("/console/receipt.js");
            return priceText({ money: 0.000152013889, currency: "EUR", gpu_seconds: 1 });
        }"""
    )

    assert price == "0.000152 EUR"


def test_an_image_has_its_request_and_price_too(writer: Page):
    writer.get_by_role("combobox", name="Model").select_option(PAINTER)
    writer.get_by_label("Size").fill("64x64")
    writer.get_by_label("Steps").fill("2")

    answer = ask_by_keyboard(writer, "a red square").get_by_role("article", name="Answer of")

    expect(answer.get_by_role("link", name="what happened")).to_be_visible()
    expect(answer).to_contain_text(re.compile(r"price .*GPU s"))


@pytest.mark.parametrize(
    ("status", "error", "advice"),
    [
        (429, {"code": "overloaded", "message": "the queue is full"}, "Try again in a moment."),
        (401, {"code": "unauthorized", "message": "no key"}, "Sign in with an API key"),
        (400, {"code": "bad_request", "message": "wrong value", "param": "seed"}, "Change “seed”"),
        (502, {"code": "stage_failed", "message": "it failed", "stage": "thinker"}, "names the stage"),
    ],
)
def test_an_error_has_its_code_and_what_to_do(writer: Page, status: int, error: dict[str, Any], advice: str):
    writer.route(CHATS, reject_with(status, error), times=1)
    prompt_of(writer).fill("hello")
    prompt_of(writer).press("Enter")
    answer = writer.get_by_role("article", name="Answer of")
    alert = answer.get_by_role("alert")

    expect(alert).to_contain_text(error["code"])
    expect(alert).to_contain_text(error["message"])
    expect(alert).to_contain_text(advice)
    answer.get_by_role("button", name="Try again").press("Enter")
    expect(answer).to_contain_text("total")
    expect(alert).to_have_count(0)


def test_answers_are_announced_and_lines_begin_with_shift(writer: Page):
    prompt_of(writer).press_sequentially("one")
    prompt_of(writer).press("Shift+Enter")
    prompt_of(writer).press_sequentially("two")
    expect(prompt_of(writer)).to_have_value("one\ntwo")

    prompt_of(writer).press("Enter")

    news = writer.get_by_role("status").filter(has_text=f"Answer of {OMNI}:")
    expect(news).to_be_attached()
    text = writer.locator(".answer .text").inner_text().strip()
    assert text in (news.text_content() or "")


def test_the_composer_is_reached_in_order_by_keyboard(writer: Page):
    ask_by_keyboard(writer, "one")
    order = []

    for _ in range(4):
        writer.keyboard.press("Tab")
        order.append(writer.evaluate("document.activeElement.textContent"))

    assert order == ["Attach", "Microphone", "Talk", "Send"]
    for _ in range(5):
        writer.keyboard.press("Shift+Tab")
    assert writer.evaluate("document.activeElement.textContent") == "Waterfall"


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)], ids=["light", "dark", "phone"]
)
def test_a_conversation_breaks_no_rule_of_axe(writer: Page, scheme: Scheme, width: int):
    writer.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    writer.set_viewport_size({"width": width, "height": 800})
    writer.get_by_role("combobox", name="Compare with").select_option(VL)
    turn = ask_by_keyboard(writer, "hello")
    turn.locator("summary", has_text="Waterfall").first.click()
    expect(turn.locator(".waterfall")).to_be_visible()
    writer.route(CHATS, reject_with(429, {"code": "overloaded", "message": "the queue is full"}), times=2)
    prompt_of(writer).fill("again")
    prompt_of(writer).press("Enter")
    expect(writer.get_by_role("alert")).to_have_count(2)
    writer.get_by_role("button", name="Edit", exact=True).first.click()

    results = Axe().run(writer)

    assert results.violations_count == 0, results.generate_report()
    assert writer.evaluate("document.documentElement.scrollWidth") <= width
