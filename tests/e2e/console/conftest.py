"""One system with models for all modalities, and a browser for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.console.browser import find_executable
from tests.e2e.system import OMNI, VL, System, declare_model, start_system

TOKEN, PAINTER, DIRECTOR = "the-token-of-the-test", "qwen-image-tiny", "ltx2-tiny"
PATIENCE = 60_000  # milliseconds

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="package")
def system(
    tmp_path_factory: pytest.TempPathFactory,
    omni_checkpoint: Path,
    vl_checkpoint: Path,
    image_checkpoint: Path,
    ltx2_checkpoint: Path,
) -> Iterator[System]:
    models = {
        OMNI: single_option("qwen2_5_omni", omni_checkpoint, "M"),
        VL: single_option("qwen2_5_vl", vl_checkpoint, "EL"),
        PAINTER: single_option("qwen_image", image_checkpoint, "TDV"),
        DIRECTOR: single_option("ltx2", ltx2_checkpoint, "M"),
    }
    directory = tmp_path_factory.mktemp("console")
    with start_system(directory, models, OMNIBUS_GATEWAY_ADMIN_TOKEN=TOKEN) as new_system:
        yield new_system


def single_option(family: str, checkpoint: Path, option: str) -> dict:
    """A deployment in one executor."""
    deployment = declare_model(family, checkpoint)
    return {**deployment, "options": {option: deployment["options"][option]}, "paths": [{"options": [option]}]}


@pytest.fixture(scope="package")
def browser(system: System) -> Iterator[Browser]:
    with open_browser() as new_browser:
        yield new_browser


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser whose microphone plays a hum. Start systems before it."""
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--use-fake-device-for-media-stream"]
    with sync_playwright() as playwright:
        new_browser = playwright.chromium.launch(
            executable_path=find_executable(), args=[*flags, "--use-fake-ui-for-media-stream"]
        )
        yield new_browser
        new_browser.close()


@contextmanager
def open_console(browser: Browser, url: str) -> Iterator[Page]:
    """The console of the gateway at ``url`` in a tab without a key; fails for policy violations and script errors."""
    context = browser.new_context(permissions=["microphone"], viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    failed_requests: list[str] = []
    page.on("requestfailed", lambda request: failed_requests.append(f"{request.url}: {request.failure}"))
    page.goto(f"{url}/console/")
    expect(page.locator("#main .room"), f"the page's scripts run; not loaded: {failed_requests}").to_be_attached()
    yield page
    context.close()
    # What does not come is the matter of tests; each says what the page makes of it.
    assert [fault for fault in faults if not fault.startswith("Failed to load resource")] == []


@pytest.fixture
def anonymous_page(system: System, browser: Browser) -> Iterator[Page]:
    with open_console(browser, system.url) as page:
        yield page


@pytest.fixture
def page(anonymous_page: Page) -> Page:
    """The console with its key."""
    return sign_in(anonymous_page)


def sign_in(page: Page) -> Page:
    """Give the console its token."""
    page.evaluate("token => sessionStorage.setItem('omnibus.admin', token)", TOKEN)
    page.reload()
    expect(page.get_by_role("status").filter(has_text="live").first).to_be_visible()
    return page


@pytest.fixture
def playground(page: Page) -> Page:
    """The playground, with short answers."""
    page.get_by_role("link", name="Playground").click()
    page.locator("summary", has_text="Settings").click()
    page.get_by_label("Most tokens").fill("6")
    page.get_by_role("combobox", name="Model").select_option(OMNI)
    return page
