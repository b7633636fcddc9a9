"""Hooks of MkDocs: pages from outside of ``docs/``, links into the repository, and the console's colours and mark.

In ``docs/`` links are those of a code host: relative to the page's file. On the site README, CONTRIBUTING and CHANGELOG
are pages as well. Every file or directory that a page links to has a page below ``files/`` that shows it. No link
therefore leaves the site.
"""

import ast
import os
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Page of the site to the file that it shows, for pages that do not lie in ``docs/``.
MOUNTED = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
#: Files of the console, whose colours and mark the site has.
_CONSOLE = ROOT / "services" / "gateway" / "omnibus_gateway" / "console" / "static"
_COLOURS = re.compile(r":root \{([^}]*)\}")
#: Schemes of the theme, in the order in which the console has its colours.
_SCHEMES = ("default", "slate")
#: Link whose text is the name of the page that it leads to, with or without a place on it.
_NAMED_LINK = re.compile(r"\[`?(?:[\w/]*/)?([\w-]+\.md)`?\]\(([^)\s]*\b\1(?:#[^)\s]*)?)\)")
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
#: Suffix to the name by which Pygments knows the language.
_LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh", ".toml": "toml"}
#: Script that the theme takes from another site, for searches on a disk, and the one of ours in its place.
_WORKER_SHIM, _OWN_WORKER = "https://unpkg.com/iframe-worker/shim", "assets/frame_worker.js"
#: Elements of pages without a name for screen readers, and with one.
_UNNAMED = {
    '<div class="md-search" data-md-component="search" role="dialog">': (
        '<div class="md-search" data-md-component="search" role="dialog" aria-label="Search">'
    ),
    "<th></th>": "<td></td>",
}
#: What a page loads, other than by a click.
_LOADED = re.compile(
    r"<(?:script|img|iframe|link rel=\"?(?:stylesheet|preconnect)\"?)[^>]*(?:src|href)=\"?(https?:[^\s\">]+)"
)
_HIDDEN = re.compile(r"\.|__pycache__$|.*\.egg-info$")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the mounted pages, one for each linked repository file, and the look of the console."""
    files.append(File.generated(config, "assets/mark.svg", abs_src_path=str(_CONSOLE / "mark.svg")))
    files.append(File.generated(config, "assets/colours.css", content=read_colours()))
    for page, source in MOUNTED.items():
        head = "---\nhide: [navigation]\n---\n\n" if page == "index.md" else ""
        files.append(File.generated(config, page, content=head + (ROOT / source).read_text()))
    sources = {path for page in files.documentation_pages() for path in _linked_sources(page)}
    for path in sorted(sources):
        files.append(File.generated(config, source_page(path), content=render_source(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Turn links between repository files into links between site pages."""
    uri = page.file.src_uri
    return markdown if uri.startswith("files/") else rewrite_links(markdown, uri)


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """Name elements for screen readers, and keep the page from loading anything from other sites.

    Raises ``PluginError`` for remaining references.
    """
    for unnamed, named in _UNNAMED.items():
        output = output.replace(unnamed, named)
    return _keep_local(output, page.file.dest_uri)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Keep generated pages, such as errors, from loading anything from other sites."""
    return _keep_local(output, template_name)


def rewrite_links(markdown: str, page: str) -> str:
    """Rewrite the links in ``markdown`` of ``page``, except in fences."""
    fences = _FENCE.findall(markdown)
    prose = [
        _LINK.sub(
            lambda link: _site_link(link[0], page),
            _NAMED_LINK.sub(lambda link: _titled_link(link, page), each),
        )
        for each in _FENCE.split(markdown)
    ]
    return "".join(map("".join, zip_longest(prose, fences, fillvalue="")))


def read_colours() -> str:
    """Style sheet with the console's colours, as variables of the theme's light and dark scheme."""
    blocks = _COLOURS.findall((_CONSOLE / "console.css").read_text())
    if len(blocks) != len(_SCHEMES):
        raise PluginError(f"{_CONSOLE / 'console.css'} must have two blocks :root, for light and dark: {len(blocks)}")
    return "".join(
        f'[data-md-color-scheme="{scheme}"] {{{block}}}\n' for scheme, block in zip(_SCHEMES, blocks, strict=True)
    )


def _titled_link(link: re.Match[str], page: str) -> str:
    """Return a link with the title of its page as text, if its page exists."""
    path = _linked_path(link[2], page)
    heading = _HEADING.search((ROOT / path).read_text()) if path is not None and (ROOT / path).is_file() else None
    return f"[{heading[1]}]({link[2]})" if heading else link[0]


def _keep_local(output: str, path: str) -> str:
    output = output.replace(_WORKER_SHIM, os.path.relpath(_OWN_WORKER, PurePosixPath(path).parent))
    if urls := _LOADED.findall(output):
        raise PluginError(f"{path} loads from other sites: {', '.join(urls)}")
    return output


def source_page(path: str) -> str:
    """Page of the site that shows the repository's file or directory ``path``."""
    return f"files/{path}.md"


def render_source(path: str) -> str:
    """A page with a file's text, or a directory's entries with summaries."""
    lines = ["---", f"title: {path}", "search: {exclude: true}", "---", "", f"# `{path}`", ""]
    full_path = ROOT / path
    if full_path.is_dir():
        lines += ["| | |", "|---|---|", *_directory_rows(full_path)]
    else:
        lines += [f"````{_LANGUAGES.get(full_path.suffix, 'text')}", full_path.read_text().rstrip("\n"), "````"]
    return "\n".join([*lines, ""])


def _directory_rows(directory: Path) -> Iterator[str]:
    for entry in sorted(directory.iterdir(), key=lambda each: (each.is_file(), each.name)):
        if not _HIDDEN.match(entry.name):
            yield f"| `{entry.name}{'/' * entry.is_dir()}` | {_summary_of(entry)} |"


def _summary_of(entry: Path) -> str:
    """First sentence of a module's or package's docstring, or "" without one."""
    module = entry / "__init__.py" if entry.is_dir() else entry
    if module.suffix != ".py" or not module.is_file():
        return ""
    first = (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("``", "`").replace("|", "\\|")


def _linked_sources(page: File) -> Iterator[str]:
    for link in _LINK.findall(_FENCE.sub("", page.content_string)):
        path = _linked_path(link, page.src_uri)
        if path is not None and _page_of(path) is None and (ROOT / path).exists():
            yield path


def _linked_path(link: str, page: str) -> str | None:
    """Repository path of ``link``, or None for other sites and anchors."""
    target = link.partition("#")[0]
    if not target or ":" in target:
        return None
    source = PurePosixPath(MOUNTED.get(page, f"docs/{page}"))
    return os.path.normpath(source.parent / target)


def _page_of(path: str) -> str | None:
    """Page or asset of the site for the file ``path``.

    None if only its source can be shown.
    """
    pages = {source: page for page, source in MOUNTED.items()}
    return pages.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)


def _site_link(link: str, page: str) -> str:
    path = _linked_path(link, page)
    if path is None:
        return link
    target = os.path.relpath(_page_of(path) or source_page(path), PurePosixPath(page).parent)
    _, mark, anchor = link.partition("#")
    return target + mark + anchor
