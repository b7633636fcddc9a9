"""``python -m tests.screenshots`` writes the screenshots of the documentation, from a running system and a browser."""

import base64
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Locator, Page, expect, sync_playwright

from omnibus.process.spec import PACKAGE_PATH
from omnibus.up import runs
from omnibus.up.runs import RunState
from tests.e2e.console.browser import find_executable

#: What opens a page of the console, and returns what to take a screenshot of.
View = Callable[[Page, RunState], Page | Locator]

_ROOT = Path(__file__).parents[1]
_DOCS = _ROOT / "docs"
_IMAGE = _DOCS / "assets" / "demo-input.png"
_CHAT, _PAINTER = "qwen2.5-omni-world", "qwen-image-world"
_QUESTION = "What do you see?"
#: Pixels of a screenshot, as the site shows it in two columns of text.
_SIZE = {"width": 1360, "height": 800}
_TALL = {**_SIZE, "height": 1040}
#: Seconds for the system to start, half of those of the load on the live page, and milliseconds for a page.
_UP_WITHIN, _LOAD_SECONDS, _PATIENCE = 240.0, 20.0, 60_000.0


def write_screenshots(directory: Path = _DOCS) -> None:
    """Write one screenshot for each page of the documentation whose readers look rather than read."""
    for flags, views in _VIEWS.items():
        _write_views(directory, flags, views)


def _write_views(directory: Path, flags: Sequence[str], views: Mapping[str, View]) -> None:
    with _running_system(*flags) as state, _open_console(state) as page:
        for name, show in views.items():
            _save(show(page, state).screenshot(), directory / name)


@contextmanager
def _running_system(*flags: str) -> Iterator[RunState]:
    """Yield the state of a system with the demo models, or those of ``flags``."""
    with tempfile.TemporaryDirectory() as directory:
        env = {**os.environ, "XDG_RUNTIME_DIR": directory, "PYTHONPATH": f"{_ROOT}:{PACKAGE_PATH}"}
        command = [sys.executable, "-m", "omnibus.cli", "up", "--port", "0", "--detach", "--quiet", *flags]
        subprocess.run(command, env=env, cwd=_ROOT, timeout=_UP_WITHIN, check=True)  # ends once everything serves
        try:
            yield runs.read_state(environ=env)
        finally:
            subprocess.run([*command[:3], "down"], env=env, timeout=_UP_WITHIN, check=True)


@contextmanager
def _open_console(state: RunState) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_executable(), args=["--no-sandbox"])
        page = browser.new_page(viewport=_SIZE, color_scheme="light", reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_default_timeout(_PATIENCE)
        expect.set_options(timeout=_PATIENCE)
        page.goto(f"{state.gateway_url}/console/#token={state.admin_token}")
        expect(page.get_by_role("status").filter(has_text="live").first).to_be_visible()
        yield page
        browser.close()


def _show_playground(page: Page, state: RunState) -> Page:
    page.set_viewport_size(_TALL)  # type: ignore[arg-type]
    _open(page, "playground")
    page.get_by_role("combobox", name="Model").select_option(_CHAT)
    page.locator("#file").set_input_files(_IMAGE)
    page.get_by_role("textbox", name="Prompt").fill(_QUESTION)
    page.get_by_role("button", name="Send").click()
    answer = page.get_by_role("article", name=f"Answer of {_CHAT}")
    expect(answer).to_contain_text("tokens")
    return page


def _show_waterfall(page: Page, state: RunState) -> Locator:
    page.set_viewport_size(_SIZE)  # type: ignore[arg-type]
    _open(page, f"invocations/{_ask(state, modalities=['text', 'audio'])}")
    heading = page.get_by_role("heading", name="Waterfall")
    expect(heading).to_be_visible()
    return page.locator(".card", has=heading).last


def _show_plan(page: Page, state: RunState) -> Page:
    _open(page, "plan")
    expect(page.get_by_role("heading", name="Plan of epoch")).to_be_visible()
    return page


def _show_live(page: Page, state: RunState) -> Page:
    """Show the live page under load, which goes on for some time."""
    _open(page, "live")
    threading.Thread(target=_send_load, args=(state,), daemon=True).start()
    page.wait_for_timeout(1000 * _LOAD_SECONDS / 2)
    expect(page.locator("main .card", has_text=_CHAT).first).not_to_contain_text("Idle")
    return page


def _send_load(state: RunState) -> None:
    """Send requests until the system ends, or for some time."""
    give_up = time.monotonic() + 2 * _LOAD_SECONDS
    with suppress(httpx.HTTPError):
        while time.monotonic() < give_up:
            _send_round(state)


def _send_round(state: RunState) -> None:
    _ask(state)
    _ask(state, modalities=["text", "audio"])
    body = {"model": _PAINTER, "prompt": "a red circle on blue", "size": "64x64", "n": 1}
    httpx.post(f"{state.gateway_url}/v1/images/generations", json=body, timeout=60).raise_for_status()


def _ask(state: RunState, **changes: Any) -> str:
    """Send a chat about an image and return its id."""
    url = f"data:image/png;base64,{base64.b64encode(_IMAGE.read_bytes()).decode()}"
    content = [{"type": "text", "text": _QUESTION}, {"type": "image_url", "image_url": {"url": url}}]
    speech = {"audio": {"voice": "Chelsie", "format": "wav"}} if "modalities" in changes else {}
    body = {"model": _CHAT, "messages": [{"role": "user", "content": content}], **speech, **changes}
    headers = {"x-omnibus-path": "EV>Th>Ta>V" if speech else "EV>Th"}
    response = httpx.post(f"{state.gateway_url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    response.raise_for_status()
    return str(response.headers["x-request-id"])


def _open(page: Page, name: str) -> None:
    page.evaluate("name => { location.hash = `#/${name}` }", name)
    expect(page.locator("main .room").first).not_to_be_empty()
    expect(page.locator("main :is(.card, .note)").first).to_be_attached()


def _save(png: bytes, path: Path) -> None:
    Image.open(io.BytesIO(png)).convert("RGB").save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


#: Views by the flags of the system that they show: the demo models, and the planned models of docs/planner.md.
_VIEWS: Mapping[tuple[str, ...], Mapping[str, View]] = {
    (): {"playground.png": _show_playground, "waterfall.png": _show_waterfall, "console.png": _show_live},
    ("--models", "examples/simulated/models.json"): {"plan.png": _show_plan},
}

if __name__ == "__main__":
    write_screenshots()
