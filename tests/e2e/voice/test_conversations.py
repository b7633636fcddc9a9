"""Voice conversations in the playground, with audio as the microphone."""

import base64
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright, expect

from tests.e2e.console.conftest import PATIENCE, TOKEN
from tests.e2e.small.streams import MODEL
from tests.e2e.system import System
from tests.e2e.voice.speaking import SPEAKER_RATE, begin_talk, read_played, speaking_browser, tapped_page

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

#: Seconds of audio.
LENGTH = """each => new Promise((resolve) => {
    const tell = () => resolve(each.duration);
    each.readyState ? tell() : each.addEventListener("loadedmetadata", tell);
})"""
#: A speaker, its reports of a ``heard`` item, and its ``passed`` seconds. These are seconds of its device, because
#: playback is late on a busy machine.
SPEAKER = """async () => {
    const { Speaker } = await import("/console/voice_audio.js");
    const until = async (holds) => { while (!holds()) await new Promise((resolve) => setTimeout(resolve, 10)); };
    let samples = 0;
    const speaker = await Speaker.open(({ heard }) => { samples = heard; });
    const heard = (count) => until(() => samples >= count);
    const passed = async (seconds) => {
        const end = speaker.context.currentTime + seconds;
        await until(() => speaker.context.currentTime >= end);
    };
    return await (%s)(speaker, heard, passed);
}"""
#: Ten seconds of audio, stopped after some playback: the samples that the speaker reports as played, and the device's
#: own delay.
STOP = """async (speaker, heard, passed) => {
    await window.tapped;
    await passed(0.1);
    for (let at = 0; at < 100; at++) speaker.push("long", new Float32Array(2400).fill(0.25));
    await heard(4800);
    const late = speaker.late;
    const [[item, samples]] = await speaker.stop();
    await passed(0.5);
    speaker.close();
    return [item, samples, late];
}"""
#: Half a second of audio from a longer stream, stopped after its playback.
STOP_DRY = """async (speaker, heard, passed) => {
    speaker.push("dry", new Float32Array(12000).fill(0.25));
    await heard(9600);
    await passed(0.5);
    const late = speaker.late;
    const stopped = await speaker.stop();
    speaker.close();
    return [stopped, late];
}"""
NO_MICROPHONE = """() => {
    navigator.mediaDevices.getUserMedia = async () => { throw new DOMException("none", "NotFoundError") };
}"""


def open_playground(browser: Browser, system: System, page: Page | None = None) -> Page:
    page = page or browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{system.url}/#token={TOKEN}")
    # It shows a room at its start, regardless of earlier choices.
    expect(page.get_by_role("status").filter(has_text="live").first).to_be_visible()
    page.get_by_role("link", name="Playground").click()
    expect(page.get_by_role("combobox", name="Model")).to_contain_text(MODEL)
    return page


def test_speech_stops_the_answer_at_once_and_the_model_knows_what_was_heard(speaker: Browser, system: System):
    page = open_playground(speaker, system)
    begin_talk(page, MODEL, written=False)
    panel = page.get_by_role("region", name="Conversation by voice")
    # On a busy machine an answer may be interrupted before any playback.
    heard_some = page.get_by_label("Audio that was played")
    stopped_answer = (
        panel.get_by_role("article", name=f"{MODEL} said").filter(has_text="interrupted").filter(has=heard_some)
    )

    expect(panel.locator(".happened")).to_contain_text(re.compile(r"told the model that [1-9]\d* ms were played"))
    expect(stopped_answer.first).to_be_visible()
    page.get_by_role("button", name="End conversation").click()

    expect(panel.get_by_role("status")).to_have_text("ended")
    events = panel.locator(".happened").text_content() or ""
    end_times = [int(each) for each in re.findall(r"interrupted: stopped after (\d+) ms", events)]
    truncations = [int(each) for each in re.findall(r"told the model that (\d+) ms were played", events)]
    assert truncations == end_times[: len(truncations)]
    caption = stopped_answer.first.get_by_label("Audio that was played").evaluate(LENGTH)
    assert caption * 1000 == pytest.approx(next(each for each in end_times if each), abs=1)
    expect(panel.locator("svg rect.spoken").first).to_be_attached()
    expect(panel.locator("svg rect.stopped").first).to_be_attached()
    page.context.close()


def test_the_caption_of_an_interrupted_answer_has_only_the_words_that_were_heard(speaker: Browser, system: System):
    page, words, milliseconds, end_times = open_playground(speaker, system), defaultdict(str), defaultdict(float), {}

    def read_frame(frame: str | bytes) -> None:
        event = json.loads(frame)
        if event["type"] == "response.output_audio_transcript.delta":
            words[event["item_id"]] += event["delta"]
        elif event["type"] == "response.output_audio.delta":
            milliseconds[event["item_id"]] += len(base64.b64decode(event["delta"])) / 2 / SPEAKER_RATE * 1000
        elif event["type"] == "conversation.item.truncated":
            end_times[event["item_id"]] = event["audio_end_ms"]

    page.on("websocket", lambda socket: socket.on("framereceived", read_frame))
    begin_talk(page, MODEL, written=False)
    stopped_answer = page.get_by_role("article", name=f"{MODEL} said").first
    expect(page.locator(".happened")).to_contain_text("ms were played")
    item = next(iter(end_times))
    end = int(len(words[item]) * end_times[item] / milliseconds[item])
    caption = words[item][:end] if words[item][end].isspace() else words[item][:end].rpartition(" ")[0]

    expect(stopped_answer.locator(".text")).to_have_text(caption)
    assert len(caption) < len(words[item])
    page.context.close()


def test_a_speaker_plays_nothing_behind_its_stop(speaker: Browser, system: System):
    page = open_playground(speaker, system, tapped_page(speaker))

    item, sample_count, late = page.evaluate(SPEAKER % STOP)

    assert item == "long"
    assert 0.1 * SPEAKER_RATE < sample_count < 10 * SPEAKER_RATE
    assert len(read_played(page)) == sample_count + late
    page.context.close()


def test_an_answer_that_waits_for_more_is_stopped_too(speaker: Browser, system: System):
    page = open_playground(speaker, system)

    events, late = page.evaluate(SPEAKER % STOP_DRY)

    assert events == [["dry", 12000 - late]]
    page.context.close()


def test_who_denies_the_microphone_is_told_what_to_do(playwright: Playwright, sound_file: Path, system: System):
    with speaking_browser(playwright, sound_file, denies=True) as browser:
        page = open_playground(browser, system)
        begin_talk(page, MODEL)

        expect(page.get_by_role("alert")).to_have_text(
            re.compile("does not let this page use the microphone: allow it")
        )
        expect(page.get_by_role("button", name="Talk", exact=True)).to_be_visible()


def test_who_has_no_microphone_is_told_so(speaker: Browser, system: System):
    page = open_playground(speaker, system)
    page.evaluate(NO_MICROPHONE)
    begin_talk(page, MODEL)

    expect(page.get_by_role("alert")).to_have_text("No microphone was found: connect one, and begin again.")
    page.context.close()


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)], ids=["light", "dark", "phone"]
)
def test_a_conversation_breaks_no_rule_of_axe(speaker: Browser, system: System, scheme: str, width: int):
    page = open_playground(speaker, system)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 800})
    begin_talk(page, MODEL)
    panel = page.get_by_role("region", name="Conversation by voice")
    expect(panel.get_by_role("article", name=f"{MODEL} said").locator(".text").first).not_to_be_empty()
    panel.locator("summary", has_text="Events").click()
    # As in a long conversation: there is more than is shown, which keys have to reach.
    panel.locator(".happened").evaluate("each => { each.style.maxHeight = '1rem'; }")

    results = Axe().run(page)

    assert results.violations_count == 0, results.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()


def test_a_conversation_goes_on_when_its_gateway_is_killed(speaker: Browser, system: System):
    page = open_playground(speaker, system)
    begin_talk(page, MODEL, written=False)
    panel = page.get_by_role("region", name="Conversation by voice")
    event_log = panel.locator(".happened")
    expect(event_log).to_contain_text("answer begins")

    system.gateway(0).kill()

    expect(event_log).to_contain_text("connection lost")
    expect(event_log).to_contain_text("reconnected")
    expect(event_log).to_contain_text(re.compile(r"reconnected.*turn handed over.*answer begins"))
    expect(panel.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="End conversation").click()
    expect(panel.get_by_role("status")).to_have_text("ended")
    page.context.close()


def test_a_conversation_that_cannot_be_taken_up_again_says_so(speaker: Browser, system: System):
    page = open_playground(speaker, system)
    begin_talk(page, MODEL, written=False)
    panel = page.get_by_role("region", name="Conversation by voice")
    expect(panel.locator(".happened")).to_contain_text("connected")
    page.route("**/v1/realtime/client_secrets", lambda route: route.abort())

    system.gateway(0).kill()

    expect(panel.get_by_role("status")).to_have_text("reconnecting")
    expect(panel.get_by_role("alert")).to_have_text(
        "The connection was lost, and the conversation could not be taken up again: begin another one."
    )
    expect(panel.get_by_role("status")).to_have_text("ended")
    expect(page.get_by_role("button", name="Talk", exact=True)).to_be_visible()
    page.context.close()
