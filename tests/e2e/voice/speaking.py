"""A browser whose microphone plays audio, and its speaker's output."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, Playwright

from omnibus_models.world import tone_synth
from tests.e2e.console.browser import find_executable
from tests.tones import record_tones

RATE = 48_000  # samples per second of microphones
SPEAKER_RATE = 24_000
#: Zeros in a row that are silence of the speaker and not of a voice.
_SILENCE = 128

#: Copies all that reaches the speaker of a page to ``window.played``, once ``window.tapped`` has been fulfilled.
_TAP = """
const connect = AudioNode.prototype.connect;
const worklet = `registerProcessor("tap", class extends AudioWorkletProcessor {
    process([input]) {
        if (input[0]?.some((each) => each !== 0)) this.port.postMessage(input[0].slice());
        return true;
    }
});`;
window.played = [];
AudioNode.prototype.connect = function (to, ...rest) {
    if (this instanceof AudioWorkletNode && to === this.context.destination) {
        const url = URL.createObjectURL(new Blob([worklet], { type: "text/javascript" }));
        window.tapped = this.context.audioWorklet.addModule(url).then(() => {
            const tap = new AudioWorkletNode(this.context, "tap", { numberOfOutputs: 0 });
            tap.port.onmessage = ({ data }) => window.played.push(...data);
            connect.call(this, tap);
        });
    }
    return connect.call(this, to, ...rest);
};
"""


def write_tones(path: Path, tones: tuple[str, ...], seed: int, before: float, after: float) -> Path:
    """Write a WAV file of ``tones`` with silence before and after them."""
    path.write_bytes(tone_synth.encode_wav(record_tones(tones, seed, RATE, before, after), RATE))
    return path


@contextmanager
def speaking_browser(
    playwright: Playwright, sound: Path, *, loops: bool = False, denies: bool = False
) -> Iterator[Browser]:
    """A browser that plays ``sound`` once or repeatedly into its microphone.

    Each page with a microphone hears it. ``denies``: pages get no microphone.
    """
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--use-fake-device-for-media-stream"]
    flags.append(f"--use-fake-ui-for-media-stream{'=deny' if denies else ''}")
    flags.append(f"--use-file-for-fake-audio-capture={sound}{'' if loops else '%noloop'}")
    browser = playwright.chromium.launch(executable_path=find_executable(), args=flags)
    yield browser
    browser.close()


def tapped_page(browser: Browser) -> Page:
    """A page that records its playback.

    It bypasses the content security policy, which would block the recording script.
    """
    page = browser.new_context(bypass_csp=True).new_page()
    page.add_init_script(_TAP)
    return page


def read_played(page: Page) -> np.ndarray:
    """Playback of ``page``, float [n] at 24 kHz, without surrounding silence.

    Silence between is removed as well.
    """
    samples = np.asarray(page.evaluate("window.played"))
    loud = np.flatnonzero(samples)
    if not len(loud):
        return samples[:0]
    ends = np.flatnonzero(np.diff(loud) > _SILENCE)
    parts = np.split(loud, ends + 1)
    return np.concatenate([samples[part[0] : part[-1] + 1] for part in parts])


def begin_talk(page: Page, model: str, *, written: bool = True) -> None:
    """Start a conversation with ``model`` in the playground of ``page``.

    Turn detection is set for tones. ``written``: the input is transcribed. Audio processing is off, because noise
    suppression would remove tones.
    """
    page.get_by_role("combobox", name="Model").select_option(model)
    page.locator("summary", has_text="Conversation options").click()
    page.get_by_label("Pause that ends a turn").fill("100")
    page.get_by_label("Kept before speech").fill("20")
    page.get_by_label("Write down what I say").set_checked(written)
    page.get_by_label("Take out echo and noise").uncheck()
    page.get_by_role("button", name="Talk", exact=True).click()
