"""The documentation as a site, in a browser: the console's look, titles of pages, and rules for everybody."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.console.browser import find_executable
from tests.e2e.system import ROOT
from tools import docs_site

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

#: Pages with code, tables that scroll on a phone, screenshots, and long names.
PAGES = ("index", "first-steps", "routes", "debugging", "operations", "planner", "settings")
_WITHIN = 120.0  # seconds


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=_WITHIN, check=True)
    return directory


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--allow-file-access-from-files"]
    with sync_playwright() as playwright:
        new_browser = playwright.chromium.launch(executable_path=find_executable(), args=flags)
        yield new_browser
        new_browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)], ids=str)
def test_no_page_breaks_a_rule_of_axe(page: Page, site: Path, scheme: Literal["light", "dark"], width: int):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 800})
    rules = Axe()

    for name in PAGES:
        page.goto(f"{site.as_uri()}/{name}.html")
        page.wait_for_load_state("networkidle")

        results = rules.run(page)

        assert results.violations_count == 0, f"{name}: {results.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_site_has_the_colours_and_the_mark_of_the_console(page: Page, site: Path, scheme: Literal["light", "dark"]):
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{site.as_uri()}/debugging.html")

    colours = page.evaluate(
        """() => {
          const style = (element, name) => getComputedStyle(document.querySelector(element))[name];
          const probe = document.body.appendChild(document.createElement("i"));
          const colour = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color };
          return [style("body", "backgroundColor"), colour("paper"), style(".md-header", "backgroundColor"), colour("card"),
                  style(".md-tabs__item--active a", "color"), colour("accent")];
        }"""
    )

    assert colours[::2] == colours[1::2]
    assert page.locator(".md-header .md-logo img").evaluate("image => image.naturalWidth") > 0
    mark = docs_site.ROOT / "services" / "gateway" / "omnibus_gateway" / "console" / "static" / "mark.svg"
    assert (site / "assets" / "mark.svg").read_bytes() == mark.read_bytes()


def test_pages_and_links_have_titles_instead_of_file_names(page: Page, site: Path):
    for path in sorted(site.glob("*.html")):
        page.goto(path.as_uri())

        names = page.locator("nav .md-ellipsis, .md-content a").all_inner_texts()

        assert not [name for name in names if name.strip().endswith(".md")], path.name
        assert not page.title().endswith((".md", ".html")), path.name
