"""The console's playground talks with the trained world model: tones into a microphone, words out of the speaker."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright

from omnibus_models.world import audio_oracle, tone_synth
from tests.e2e.console.conftest import PATIENCE
from tests.e2e.meaning.asking import OMNI
from tests.e2e.system import System
from tests.e2e.voice.speaking import begin_talk, read_played, speaking_browser, tapped_page, write_tones

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

TONES = ("low", "middle", "high")
SYLLABLE = tone_synth.CODE_SAMPLES * tone_synth.SYLLABLE_CODES


def test_tones_that_a_microphone_hears_are_answered_in_a_caption_and_aloud(world_system: System, tmp_path: Path):
    sound = write_tones(tmp_path / "tones.wav", TONES, 3, before=2.0, after=2.0)
    with sync_playwright() as playwright, speaking_browser(playwright, sound) as browser:
        page = tapped_page(browser)
        page.set_default_timeout(PATIENCE)
        page.goto(f"{world_system.url}/console/#/playground")
        page.get_by_role("dialog", name="Sign in").get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("combobox", name="Model")).to_contain_text(OMNI)

        begin_talk(page, OMNI)

        panel = page.get_by_role("region", name="Conversation by voice")
        answer = panel.get_by_role("article", name=f"{OMNI} said")
        expect(panel.get_by_role("article", name="You said")).to_have_text(" ".join(TONES))
        expect(answer.locator(".text")).to_have_text(" ".join(TONES))
        expect(answer.get_by_label("Audio that was played")).to_be_visible()
        assert recognize_played(read_played(page)) == list(TONES)
        page.get_by_role("button", name="End conversation").click()
        expect(panel.get_by_role("status")).to_have_text("ended")


def recognize_played(samples: np.ndarray) -> list[str] | None:
    """Words in a speaker's playback, whose end may be missing."""
    return audio_oracle.recognize_words(np.pad(samples, (0, -len(samples) % SYLLABLE)))
