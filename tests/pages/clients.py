"""The table of docs/clients.md: packages, versions, and the features that tests run with them.

The rest of the page is written by hand.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.clients.features import FEATURES, read_declarations

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "clients.md"
_TABLE = re.compile(r"(?<=<!-- clients -->\n).*?(?=<!-- end of clients -->)", re.DOTALL)
_VOICE = "[conversations by voice](#conversations-by-voice)"
#: Page with the examples that docs/clients.md leaves out, as it links to it.
_MORE = "../examples/clients/README.md"


class DocumentedClient(NamedTuple):
    """A client: name, link to its example, other routes that it uses, and reasons for features that no test runs.

    ``reason`` is that of all features without one in ``reasons``.
    """

    name: str
    link: str
    more: str = ""
    reasons: Mapping[str, str] = MappingProxyType({})
    reason: str = ""
    package: str = ""
    is_node: bool = False


#: Reasons that several clients share.
_NO_AUDIO, _BY_VOICE, _AS_PYTHON = "not in this API", "voice only", "as in Python"
_UNTRIED = "no example"

CLIENTS = (
    DocumentedClient(
        "openai",
        "#openai",
        f"Responses, also over a WebSocket; images, speech, transcriptions, embeddings, files, batches; {_VOICE}",
    ),
    DocumentedClient("openai-agents", _MORE, f"over Responses and over chats; {_VOICE}", reason=_UNTRIED),
    DocumentedClient("anthropic", "#anthropics-messages", "stop sequences, counts of tokens", {"audio": _NO_AUDIO}),
    DocumentedClient("ollama", "#ollamas-api", "prompts, embeddings, models", {"audio": _NO_AUDIO}),
    DocumentedClient("livekit-plugins-openai", "#conversations-by-voice", _VOICE, reason=_BY_VOICE),
    DocumentedClient("pipecat-ai", "#conversations-by-voice", _VOICE, reason=_BY_VOICE),
    DocumentedClient("langchain-openai", "#langchain", "over chats and over Responses; embeddings", reason=_UNTRIED),
    DocumentedClient("pydantic-ai-slim", "#pydantic-ai", "over Responses and over chats", reason=_UNTRIED),
    DocumentedClient(
        "instructor", _MORE, "the modes `TOOLS`, `JSON_SCHEMA` and `MD_JSON`", reason="only structured output"
    ),
    DocumentedClient("litellm", _MORE, "Responses, speech, transcriptions, embeddings", reason=_UNTRIED),
    DocumentedClient("llama-index-llms-openai-like", _MORE, "completions", reason=_UNTRIED),
    DocumentedClient("llm", "#llm", "`--schema`, tools with `-T`", reason=_UNTRIED),
    DocumentedClient(
        "Codex",
        "#codex",
        "a task over Responses: reads, changes and runs a file",
        reason="not in the task",
        package="@openai/codex",
        is_node=True,
    ),
    DocumentedClient(
        "Claude Code",
        "#claude-code",
        "a task over Messages: reads, changes and runs a file",
        {"audio": _NO_AUDIO},
        reason="not in the task",
        package="@anthropic-ai/claude-code",
        is_node=True,
    ),
    DocumentedClient(
        "langchain-tests", "#standard-tests", "LangChain's standard tests of chat models", reason=_UNTRIED
    ),
    DocumentedClient(
        "lm-eval", _MORE, "tasks that generate, over chats and completions", reason="evaluations of texts"
    ),
    DocumentedClient(
        "openai for Node.js", "#openai-for-nodejs", "Responses", reason=_AS_PYTHON, package="openai", is_node=True
    ),
    DocumentedClient(
        "anthropic for Node.js",
        "#anthropic-for-nodejs",
        "",
        {"audio": _NO_AUDIO},
        reason=_AS_PYTHON,
        package="@anthropic-ai/sdk",
        is_node=True,
    ),
    DocumentedClient(
        "ollama for Node.js",
        "#ollama-for-nodejs",
        "embeddings, models",
        {"audio": _NO_AUDIO},
        reason=_AS_PYTHON,
        package="ollama",
        is_node=True,
    ),
    DocumentedClient(
        "AI SDK", "#ai-sdk", "over Responses and over chats; embeddings", reason=_UNTRIED, package="ai", is_node=True
    ),
)


def make_page() -> str:
    """The page with its current table."""
    python, node = _python_versions(), _node_versions()
    features_by_client = read_declarations()
    rows = [f"| client | version | {' | '.join(FEATURES)} | also |", f"|---|---|{'---|' * len(FEATURES)}---|"]
    for each in CLIENTS:
        version = (node if each.is_node else python)[each.package or each.name]
        package = f" (`{each.package}`)" if each.name == "AI SDK" else ""
        cells = " | ".join(describe_feature(each, name, features_by_client[each.name]) for name in FEATURES)
        rows.append(f"| [{each.name}]({each.link}){package} | {version} | {cells} | {each.more} |")
    return _TABLE.sub(lambda _: "\n".join([*rows, ""]), PAGE.read_text())


def describe_feature(client: DocumentedClient, feature: str, features: Collection[str]) -> str:
    """Return ``yes`` if a test runs the ``feature``, else the reason. Raises ``ValueError`` without one."""
    if feature in features:
        return "yes"
    reason = client.reasons.get(feature, client.reason)
    if not reason:
        raise ValueError(f"{client.name} has no test and no reason for {feature}: add one of them")
    return reason


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
