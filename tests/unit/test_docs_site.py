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
