"""The table of docs/clients.md: packages and versions of its examples.

The rest of the page is written by hand.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "clients.md"
_TABLE = re.compile(r"(?<=<!-- clients -->\n).*?(?=<!-- end of clients -->)", re.DOTALL)
_VOICE = "[conversations by voice](#conversations-by-voice)"
#: Page with the examples that docs/clients.md leaves out, as it links to it.
_MORE = "../examples/clients/README.md"


class DocumentedClient(NamedTuple):
    """A client: name, link to its example, package, and purpose."""

    name: str
    link: str
    works: str
    package: str = ""
    is_node: bool = False


CLIENTS = (
    DocumentedClient(
        "openai",
        "#openai",
        "chats, streams, images and audio in, speech out, schemas, tools, Responses, also over a WebSocket, images, speech, "
        f"transcriptions, embeddings, files, batches; {_VOICE}",
    ),
    DocumentedClient(
        "openai-agents",
        _MORE,
        f"agents with a tool, streamed and not, over Responses and over chats; images in; {_VOICE}",
    ),
    DocumentedClient(
        "anthropic",
        "#anthropics-messages",
        "messages, streams, images in, tools and their results, schemas, stop sequences, counts of tokens",
    ),
    DocumentedClient(
        "ollama",
        "#ollamas-api",
        "chats, prompts, streams, images in, schemas, tools and their results, embeddings, models",
    ),
    DocumentedClient("livekit-plugins-openai", "#conversations-by-voice", "conversations by voice"),
    DocumentedClient("pipecat-ai", "#conversations-by-voice", "conversations by voice"),
    DocumentedClient(
        "langchain-openai",
        "#langchain",
        "chats, streams, images in, schemas, tools, over chats and over Responses; embeddings",
    ),
    DocumentedClient(
        "pydantic-ai-slim", "#pydantic-ai", "images in, output by a tool and by a schema, over Responses and over chats"
    ),
    DocumentedClient("instructor", _MORE, "the modes `TOOLS`, `JSON_SCHEMA` and `MD_JSON`"),
    DocumentedClient("litellm", _MORE, "chats, streams, tools, Responses, speech, transcriptions, embeddings"),
    DocumentedClient("llama-index-llms-openai-like", _MORE, "chats, streams, images in, completions"),
    DocumentedClient("llm", "#llm", "prompts, `--schema`, tools with `-T`"),
    DocumentedClient(
        "Codex", "#codex", "a task: reads, changes and runs a file by tools, over Responses", "@openai/codex", True
    ),
    DocumentedClient(
        "Claude Code",
        "#claude-code",
        "a task: reads, changes and runs a file by tools, over Messages",
        "@anthropic-ai/claude-code",
        True,
    ),
    DocumentedClient("langchain-tests", "#standard-tests", "LangChain's standard tests of chat models"),
    DocumentedClient("lm-eval", _MORE, "tasks that generate, over chats and completions"),
    DocumentedClient(
        "openai for Node.js", "#openai-for-nodejs", "chats, streams with speech, images in, Responses", "openai", True
    ),
    DocumentedClient(
        "anthropic for Node.js",
        "#anthropic-for-nodejs",
        "messages, streams, images in, tools and their results",
        "@anthropic-ai/sdk",
        True,
    ),
    DocumentedClient(
        "ollama for Node.js", "#ollama-for-nodejs", "chats, streams, images in, embeddings, models", "ollama", True
    ),
    DocumentedClient(
        "AI SDK",
        "#ai-sdk",
        "text, streams, images in, objects, tools, over Responses and over chats; embeddings",
        "ai",
        True,
    ),
)


def make_page() -> str:
    """The page with its current table."""
    python, node = _python_versions(), _node_versions()
    rows = ["| client | version | works, as the examples show |", "|---|---|---|"]
    for each in CLIENTS:
        version = (node if each.is_node else python)[each.package or each.name]
        package = f" (`{each.package}`)" if each.name == "AI SDK" else ""
        rows.append(f"| [{each.name}]({each.link}){package} | {version} | {each.works} |")
    return _TABLE.sub(lambda _: "\n".join([*rows, ""]), PAGE.read_text())


def _python_versions() -> dict[str, str]:
    """Pinned version of each package, from the first file that contains it."""
    versions: dict[str, str] = {}
    for name in ("clients", "clients-openai2", "clients-voice", "clients-commands"):
        for line in (ROOT / f"requirements-{name}.txt").read_text().splitlines():
            package, is_pin, version = line.partition("==")
            if is_pin:
                versions.setdefault(package, version)
    return versions


def _node_versions() -> dict[str, str]:
    return dict(json.loads((ROOT / "tests" / "clients" / "package.json").read_text())["dependencies"])
