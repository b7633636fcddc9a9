"""One system with models for all modalities, and a browser for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.console.browser import executable
from tests.e2e.system import OMNI, System, declaration, running

TOKEN, PAINTER, DIRECTOR = "the-token-of-the-test", "qwen-image-tiny", "ltx2-tiny"
PATIENCE = 60_000  # milliseconds

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="package")
def system(
    tmp_path_factory: pytest.TempPathFactory, omni_checkpoint: Path, image_checkpoint: Path, ltx2_checkpoint: Path
) -> Iterator[System]:
    models = {
        OMNI: only("qwen2_5_omni", omni_checkpoint, "M"),
        PAINTER: only("qwen_image", image_checkpoint, "TDV"),
        DIRECTOR: only("ltx2", ltx2_checkpoint, "M"),
    }
    directory = tmp_path_factory.mktemp("console")
    with running(directory, models, OMNIBUS_GATEWAY_ADMIN_TOKEN=TOKEN) as made:
        yield made


def only(family: str, checkpoint: Path, option: str) -> dict:
    """A deployment in one executor."""
    declared = declaration(family, checkpoint)
    return {**declared, "options": {option: declared["options"][option]}, "paths": [{"options": [option]}]}


@pytest.fixture(scope="package")
def browser(system: System) -> Iterator[Browser]:
    """A browser whose microphone plays a hum."""
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--use-fake-device-for-media-stream"]
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=executable(), args=[*flags, "--use-fake-ui-for-media-stream"])
        yield made
        made.close()


@pytest.fixture
def stranger(system: System, browser: Browser) -> Iterator[Page]:
    """The console in a tab without a key; fails for policy violations and script errors."""
    context = browser.new_context(permissions=["microphone"], viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    missed: list[str] = []
    page.on("requestfailed", lambda request: missed.append(f"{request.url}: {request.failure}"))
    page.goto(f"{system.url}/console/")
    expect(page.locator("#main .room"), f"the page's scripts run; not loaded: {missed}").to_be_attached()
    yield page
    context.close()
    # What does not come is the matter of tests; each says what the page makes of it.
    assert [fault for fault in faults if not fault.startswith("Failed to load resource")] == []


@pytest.fixture
def page(stranger: Page) -> Page:
    """The console with its key."""
    stranger.evaluate("token => sessionStorage.setItem('omnibus.admin', token)", TOKEN)
    stranger.reload()
    expect(stranger.get_by_role("status").filter(has_text="live").first).to_be_visible()
    return stranger


@pytest.fixture
def asking(page: Page) -> Page:
    """The playground, with short answers."""
    page.get_by_role("link", name="Playground").click()
    page.locator("summary", has_text="Settings").click()
    page.get_by_label("Most tokens").fill("6")
    page.get_by_role("combobox", name="Model").select_option(OMNI)
    return page
