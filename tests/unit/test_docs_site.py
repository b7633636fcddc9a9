"""Links of pages as the site rewrites them."""

import pytest

from tools import docs_site


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        ("index.md", "docs/apps.md#apps", "apps.md#apps"),
        ("index.md", "docs/request.svg", "request.svg"),
        ("index.md", "services/gateway", "files/services/gateway.md"),
        ("index.md", "#status", "#status"),
        ("models.md", "../README.md#status", "index.md#status"),
        ("models.md", "apps.md", "apps.md"),
        ("engines.md", "../tests/conftest.py", "files/tests/conftest.py.md"),
        ("apps.md", "../examples/shout.py", "files/examples/shout.py.md"),
        ("contributing.md", "docs/planner.md", "planner.md"),
        ("apps.md", "https://example.com/a.md", "https://example.com/a.md"),
    ],
)
def test_a_link_of_a_code_host_leads_to_the_same_place_on_the_site(page: str, link: str, on_the_site: str):
    assert docs_site.rewrite_links(f"see [it]({link}).", page) == f"see [it]({on_the_site})."


def test_code_is_shown_as_it_stands():
    code_block = "```python\ntable[0](shout.py)\n```"

    assert docs_site.rewrite_links(f"[a](shout.py)\n\n{code_block}\n", "index.md").endswith(f"{code_block}\n")


def test_a_file_is_shown_with_its_text_and_a_directory_with_what_its_modules_are():
    assert "class Shout(UnitTask[Said, Loud]):" in docs_site.render_source("examples/shout.py")
    assert "| `fetcher.py` | The one fetcher" in docs_site.render_source("services/gateway/omnibus_gateway/media")


@pytest.mark.parametrize(
    ("text", "on_the_site"),
    [
        ("[canary.md](canary.md#which-version-was-it)", "[Canaries](canary.md#which-version-was-it)"),
        ("[docs/planner.md](docs/planner.md)", "[docs/planner.md](docs/planner.md)"),  # no page of docs/
        ("[canary](canary.md)", "[canary](canary.md)"),
        ("`canary.md`", "`canary.md`"),
    ],
)
def test_a_link_that_is_named_after_a_file_has_the_title_of_its_page(text: str, on_the_site: str):
    assert docs_site.rewrite_links(text, "models.md") == on_the_site


def test_both_schemes_have_the_colours_of_the_console():
    light, dark = docs_site.read_colours().splitlines()[0], docs_site.read_colours().partition('"slate"')[2]

    assert light.startswith('[data-md-color-scheme="default"] {')
    for name in ("--paper", "--card", "--ink", "--accent", "--info"):
        assert f"{name}: #" in docs_site.read_colours().partition('"slate"')[0]
        assert f"{name}: #" in dark


def test_screenshots_are_small_and_shown():
    pages = "".join(path.read_text() for path in (docs_site.ROOT / "docs").glob("*.md"))

    for image in (docs_site.ROOT / "docs").glob("*.png"):
        assert image.stat().st_size < 150 * 1024, image.name
        assert f"({image.name})" in pages, image.name
