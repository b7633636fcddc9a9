"""The console's static files: served paths, the content security policy, and forbidden content."""

import re
from pathlib import Path

import pytest

from omnibus_gateway.console.static_files import STATIC, read_files
from tests.unit.gateway.house import ToyGateway

FILES = sorted(STATIC.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MOST = 256 * 1024  # bytes of all files together
MOST_SENT = 96 * 1024  # of those that a browser downloads, compressed
#: All ways to turn text into markup or code.
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\.setHTML|"
    r"\beval\b|new Function|javascript:|setAttribute\(\s*[\"']on|import\s*\("
)
ELSEWHERE = re.compile(r"(?:https?:)?//[\w.-]+\.\w+")
IMPORTED = re.compile(r"^import .* from \"\./([\w.]+)\";$", re.MULTILINE)


def get_name(path: Path) -> str:
    return path.name


async def test_the_page_is_served_with_a_strict_policy(home: ToyGateway):
    page = await home.http.get("/console/")

    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(each.split(" ", 1) for each in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["trusted-types"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"


async def test_the_page_names_all_scripts_that_a_browser_loads(home: ToyGateway):
    page = await home.http.get("/console/")
    script = await home.http.get("/console/main.js")

    names = re.findall(r"<([\w.]+)>; rel=modulepreload", page.headers["link"])
    assert {path.name for path in SCRIPTS} - set(names) == {"voice_worklet.js"}
    assert "link" not in script.headers


async def test_every_file_is_served_and_has_the_policy_too(home: ToyGateway):
    for name, file in read_files().items():
        response = await home.http.get(f"/console/{name}")

        assert (response.status_code, response.content) == (200, file.body), name
        assert "content-security-policy" in response.headers


async def test_files_travel_packed_where_that_is_understood(home: ToyGateway):
    gzip_response = await home.http.get("/console/main.js", headers={"accept-encoding": "gzip"})
    plain = await home.http.get("/console/main.js", headers={"accept-encoding": "identity"})

    assert (gzip_response.headers["content-encoding"], gzip_response.headers["vary"]) == ("gzip", "accept-encoding")
    assert "content-encoding" not in plain.headers
    assert gzip_response.content == plain.content
    assert int(gzip_response.headers["content-length"]) < int(plain.headers["content-length"]) / 2


async def test_a_file_that_the_browser_has_is_not_sent_again(home: ToyGateway):
    first = await home.http.get("/console/main.js")
    again = await home.http.get("/console/main.js", headers={"if-none-match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")


async def test_the_address_without_a_slash_leads_to_the_page(home: ToyGateway):
    response = await home.http.get("/console")

    assert (response.status_code, response.headers["location"]) == (307, "console/")


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_where_other_servers_have_their_api_leads_to_it(home: ToyGateway, path: str):
    response = await home.http.get(path)

    assert (response.status_code, response.headers["location"]) == (307, "console/#/api")


@pytest.mark.parametrize("path", ["nothing.js", "..%2fpages.py", "%2e%2e/pages.py", "pages.py", "static/main.js"])
async def test_nothing_but_its_files_is_served(home: ToyGateway, path: str):
    assert (await home.http.get(f"/console/{path}")).status_code == 404


def test_all_of_it_is_small():
    assert sum(path.stat().st_size for path in FILES) < MOST
    assert sum(len(file.packed) for file in read_files().values()) < MOST_SENT


@pytest.mark.parametrize("path", FILES, ids=get_name)
def test_nothing_that_others_wrote_can_become_markup(path: Path):
    assert MARKUP.findall(path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=get_name)
def test_nothing_comes_from_elsewhere(path: Path):
    names = [name for name in ELSEWHERE.findall(path.read_text()) if "www.w3.org" not in name]

    assert names == []


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".html"], ids=get_name)
def test_the_page_has_neither_scripts_nor_styles_of_its_own(path: Path):
    text = path.read_text()

    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=get_name)
def test_scripts_import_what_is_there(path: Path):
    text = path.read_text()
    imports = IMPORTED.findall(text)

    assert len(imports) == text.count("\nimport ") + text.startswith("import ")
    assert [name for name in imports if not (STATIC / name).exists()] == []


@pytest.mark.parametrize(
    "code", ["a.innerHTML = b", "new Function(a)", 'import("./x.js")', "x.setAttribute('onclick', y)"]
)
def test_the_rule_on_markup_catches_what_it_is_for(code: str):
    assert MARKUP.search(code)
