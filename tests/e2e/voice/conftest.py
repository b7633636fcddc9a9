"""A simulated model with long answers, and a browser with voice input."""

import asyncio
import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.e2e.console.conftest import TOKEN
from tests.e2e.small.streams import MODEL, TIMES, make_model
from tests.e2e.system import System, start_system
from tests.e2e.voice.speaking import speaking_browser, write_tones

#: Seconds between two utterances, and tokens of an answer, which plays for longer than that.
PAUSE, TOKENS = 2.5, 300
SETTINGS = {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim", "OMNIBUS_GATEWAY_ADMIN_TOKEN": TOKEN}


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A simulated model that talks for long."""
    directory = tmp_path_factory.mktemp("talker")
    times = copy.deepcopy(TIMES)
    times["default"]["components"]["thinker"]["steps"] = {"mean": TOKENS, "most": TOKENS}
    with start_system(directory, {MODEL: make_model(directory, times)}, **SETTINGS) as new_system:
        yield new_system


@pytest.fixture(autouse=True)
def wait_until_serving(system: System) -> None:
    """A test begins when the gateway serves. Waits in a thread, since the browser's loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(system.becomes_ready())).result()


@pytest.fixture(scope="package")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("voice")
    return write_tones(directory / "said.wav", ("low",), 3, before=1.0, after=PAUSE)


@pytest.fixture(scope="package")
def playwright(system: System) -> Iterator[Playwright]:
    """The browser driver; systems start before it."""
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="package")
def speaker(system: System, playwright: Playwright, sound_file: Path) -> Iterator[Browser]:
    """A browser whose microphone plays the same words repeatedly."""
    with speaking_browser(playwright, sound_file, loops=True) as new_browser:
        yield new_browser
