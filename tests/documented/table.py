"""What pages leave to their reader, and what cannot run here.

Every entry belongs to the steps of a page that contain its text; a text of "" stands for all of them.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from tests.documented.blocks import Step, read_steps
from tests.e2e.debugging.conftest import BRITTLE

T = TypeVar("T")


class Result(NamedTuple):
    """What a step does: a pattern in its output, and its exit code.

    With ``meanwhile``, a command that repeats until the pattern appears, the step runs until Ctrl-C.
    """

    output: str = ""
    code: int = 0
    meanwhile: str = ""


class Saved(NamedTuple):
    """How a block of Python is saved and run: file, earlier files whose text it continues, and command."""

    name: str = "block.py"
    after: tuple[str, ...] = ()
    command: str = "python"


_CLIENTS = "make install-clients installs this client; tests/clients runs the example"
_CLUSTER = "a Kubernetes cluster, or docker build; tests/unit/chart renders the chart"
_HUB = "downloads from the Hugging Face hub"
_MACHINES = "three machines; tests/nodes runs them as networks of their own"
_SEVERAL_NODES = "several nodes; tests/e2e/nodes/test_documentation.py runs it"
_SIGNATURE = "a signature, written by tests/pages from the code"

SKIPPED: Mapping[tuple[str, str], str] = {
    ("clients", "import anthropic"): _CLIENTS,
    ("clients", "CLAUDE_CODE_MAX_OUTPUT_TOKENS"): "Claude Code, which needs Node.js and a larger model",
    ("clients", "codex"): _CLIENTS,
    ("clients", "greet.py"): _CLIENTS,
    ("clients", "CLAUDE_CODE_DISABLE"): _CLIENTS,
    ("clients", "from langchain_openai"): _CLIENTS,
    ("clients", "from pydantic_ai"): _CLIENTS,
    ("clients", "mkdir -p llm"): _CLIENTS,
    ("clients", "cat > llm/extra"): _CLIENTS,
    ("clients", "export LLM_USER_PATH"): _CLIENTS,
    ("clients", "llm -m assistant"): _CLIENTS,
    ("clients", 'from "openai"'): _CLIENTS,
    ("clients", 'from "ai"'): _CLIENTS,
    ("debugging", "omnibus.event.node"): _SEVERAL_NODES,
    ("debugging", "omnibus.node.$NODE"): _SEVERAL_NODES,
    ("kubernetes", ""): _CLUSTER,
    ("lab", "make lab"): "runs every experiment again and writes the page",
    ("models", "omnibus models get Qwen"): _HUB,
    ("models", "omnibus models check Qwen"): _HUB,
    ("models", "omnibus models show Qwen"): _HUB,
    ("models", "omnibus serve Qwen"): _HUB,
    ("models", "omnibus serve ./weights"): "a checkpoint of the reader; tests/e2e/test_serve.py serves one and chats",
    ("models", "OMNIBUS_EXECUTOR_DEVICE=cuda"): "a GPU",
    ("models", "tools.world_training"): "trains for an hour",
    ("nodes", "omnibus up --listen"): _MACHINES,
    ("nodes", "omnibus node token"): _MACHINES,
    ("nodes", "scp join.json"): _MACHINES,
    ("nodes", "omnibus node join"): _MACHINES,
    ("nodes", "OMNIBUS_BUS_"): _MACHINES,
    ("nodes", "OMNIBUS_STORE_URL"): _MACHINES,
    ("nodes", "omnibus-serve[ucx]"): "installs ucxx; `make install-ucx` does it for tests/e2e/test_ucx.py",
    ("nodes", "OMNIBUS_SIDECAR_TRANSPORT"): "a network with RDMA",
    ("nodes", "UCX_NET_DEVICES"): "a network with RDMA",
    ("operations", "prometheus --config.file"): "Prometheus is not installed; tests/e2e/metrics asks its queries",
    ("operations", "cd deploy/compose"): "Docker; tests/e2e/test_compose.py starts the layers",
    ("operations", "docker compose"): "Docker; tests/e2e/test_compose.py starts the layers",
    ("operations", "kubectl"): _CLUSTER,
    ("performance", ""): "installs other load generators from a package index",
    (
        "real",
        "",
    ): "needs trained weights, see make install-real; tests/e2e/test_real_apps.py runs the demo and the apps",
    ("realtime", "pip install"): "installs from a package index; the tests have the package",
    ("realtime", "new WebSocket"): "a browser; tests/e2e/voice connects with the same subprotocols",
    ("reliability", ""): "minutes to an hour of faults; tests/chaos and tests/fuzz run shorter ones",
    ("tasks", ""): _SIGNATURE,
}

#: Pages whose commands need no system.
WITHOUT_SYSTEM = ("lab", "nodes")

#: Texts of a page that stand for the reader's own.
PLACEHOLDERS: Mapping[str, Mapping[str, str]] = {
    "canary": {"4c1d2e-0-5b0f3a9c6d2e8714": "$ID"},
    "first-steps": {"show ID": "show $ID", "replay ID": "replay $ID"},
    "planner": {"rollback 12": "rollback 1"},
    "models": {"=/adapters": "=$PWD/adapters"},
}

_POST = "-H 'content-type: application/json' -d"
_READ_ID = "ID=$(sed -n 's/^x-request-id: *\\([^\\r]*\\).*/\\1/p' headers)"


def _say(model: str, content: str = '"Say two red circles on blue"') -> str:
    """Send a chat, and store its id as ``ID``."""
    body = f'{{"model": "{model}", "max_tokens": 8, "messages": [{{"role": "user", "content": {content}}}]}}'
    return f"curl localhost:8000/v1/chat/completions -o answer.json -D headers {_POST} '{body}'\n{_READ_ID}"


_IMAGE = """[{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,
iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}}]""".replace(
    "\n", ""
)
_MAKE_FILES = "python -m omnibus_models.world make ."
_BREAK = f"""curl localhost:8000/v1/apps/brittle/invoke -D headers {_POST} '{{"text": "defect"}}'"""
_DEAD_LETTER = f"""cat > brittle.py <<'END'
{BRITTLE}
END
omnibus app register brittle.py
APP=brittle
{_BREAK} || {_READ_ID.replace("ID=", "DEAD=")}
for try in $(seq 50); do omnibus deadletters show $DEAD && break; sleep 0.2; done"""
_STREAM = f"""rm -f headers
curl localhost:8000/v1/chat/completions -o answer.json -D headers {_POST} '{{"model": "qwen2.5-vl-tiny",
  "stream": true, "ignore_eos": true, "max_tokens": 1000, "messages": [{{"role": "user", "content": "hi"}}]}}' &
until grep -q x-request-id headers; do sleep 0.1; done
{_READ_ID}"""
_ADAPTER = """python examples/adapters/make.py examples/adapters/qwen2-tiny adapters/captain-v2 3
echo '{"models": {"qwen2-tiny": {"family": "qwen2", "checkpoint": "examples/adapters/qwen2-tiny"}}}' > models.json"""
_POEMS = """cat > poems.py <<'END'
from omnibus.task import MLLM, ChatInput, Think

READER = MLLM(encoders={}, thinker=Think(model="qwen2.5-vl-tiny", component="thinker"))


async def serve(request: str) -> str:
    return await (await READER(ChatInput.of(request, max_tokens=8))).text
END
omnibus app register poems.py
omnibus app invoke poems '"rain"'"""
_SPEAK = f"""curl localhost:8000/v1/audio/speech -o answer.wav {_POST} '{{
  "model": "qwen2.5-omni-world", "voice": "Chelsie", "input": "a red square on blue", "response_format": "wav"}}'"""

#: What the reader does before a step, in shell, as the text before it says.
BEFORE: Mapping[tuple[str, str], str] = {
    ("canary", "app update poems"): _POEMS,
    ("canary", "omnibus bisect"): _say("qwen2.5-vl-tiny"),
    ("clients", "client = openai"): _MAKE_FILES,
    ("debugging", "omnibus replay $ID      "): _say("qwen2.5-vl-tiny", _IMAGE),
    ("debugging", "omnibus deadletters      "): _DEAD_LETTER,
    ("debugging", "nats sub 'omnibus.>'"): 'eval "$(omnibus env)"\nTASK=think-qwen2_5-vl-tiny-thinker OPTION=L',
    ("debugging", '"omnibus.end.$ID"'): _STREAM,
    ("debugging", "nats sub --raw 'omnibus.>'"): _STREAM,
    ("debugging", "nats stream view"): _say("qwen2.5-vl-tiny", _IMAGE),
    ("debugging", "Omnibus-Route:,$EXECUTOR"): "EXECUTOR=qwen2_5-vl-tiny-L-0",
    ("first-steps", "omnibus show"): _say("qwen2.5-omni-world"),
    ("models", "--models models.json"): _ADAPTER,
    ("models", "omnibus_models.world tell"): _SPEAK,
}

RESULTS: Mapping[tuple[str, str], Result] = {
    ("routes", "v1/audio/transcriptions"): Result("00:00:00,"),
    ("routes", "v1/rerank"): Result('"relevance_score"'),
    ("operations", "omnibus restore"): Result("say --replace", code=1),  # the system that runs has data
    ("operations", "omnibus size"): Result("^gateways  1"),
    ("planner", "plan diff"): Result("there is no plan before epoch 1", code=1),
    ("planner", "plan show"): Result("H100 16 of 16"),
    ("planner", "omnibus top"): Result("omni/Th", meanwhile="sleep 0.5"),
    ("planner", "whatif --models examples/simulated/models.json --rate 0.8x"): Result("first to break: omni/"),
    ("tools", "curl"): Result('"finish_reason":"tool_calls"'),
    ("apps", "app run my_app.py"): Result('^{"text": "two red circles on blue"}$'),
    ("apps", "app invoke my_app"): Result("a green square on white"),
    ("apps", "app run examples/shout.py"): Result("^HELLO! HELLO! $"),
    ("apps", "test_it_answers"): Result("1 passed"),
    ("canary", "canary status"): Result("^qwen2.5-vl-tiny +shadow +E with dtype bfloat16"),
    ("debugging", "omnibus replay"): Result("identical to the recorded answer"),
    ("debugging", "deadletters retry"): Result("failed: stage_failed", code=1),
    ("debugging", "nats sub 'omnibus.>'"): Result("omnibus.inv.chat.", meanwhile=_say("qwen2.5-vl-tiny")),
    ("debugging", '"omnibus.end.$ID"'): Result("omnibus.end.", meanwhile="sleep 0.2"),
    ("debugging", "nats sub --raw 'omnibus.>'"): Result('"t":"chunk"', meanwhile="sleep 0.2"),
    ("debugging", '"omnibus.inv.*.$ID" --all --raw --count 1 |'): Result('"status":"done"'),
    ("debugging", '"omnibus.inv.*.$DEAD"'): Result('"status":"failed"'),
    ("debugging", "--headers-only"): Result("omnibus.task.think-", meanwhile=_say("qwen2.5-vl-tiny")),
    ("debugging", "nats sub 'omnibus.event.deadletter.>'"): Result('"reason":"failed"', meanwhile=f"{_BREAK} || true"),
    ("first-steps", "curl"): Result("two red circles on blue"),
    ("first-steps", "app invoke"): Result("^A GREEN SQUARE ON WHITE$"),
    ("first-steps", "app run"): Result("^HELLO OUT THERE! HELLO OUT THERE! $"),
    ("first-steps", "omnibus show"): Result("status  done"),
    ("first-steps", "omnibus replay"): Result("identical to the recorded answer"),
    ("first-steps", "plan show"): Result("H100 16 of 16"),
    ("first-steps", "omnibus top"): Result("omni/Th", meanwhile="sleep 0.2"),
}

SAVED: Mapping[tuple[str, str], Saved] = {
    ("apps", "class Picture("): Saved("tasks.py"),
    ("apps", "class Paint("): Saved("tasks.py", after=("tasks.py",)),
    ("apps", "class Caption("): Saved("my_app.py"),
    ("apps", "class Question("): Saved("my_app.py", after=("my_app.py",)),
    ("apps", "-> Answer"): Saved("my_app.py", after=("my_app.py",)),
    ("apps", "-> AsyncIterator[str]"): Saved("parts.py", after=("my_app.py",)),
    ("apps", "test_it_answers"): Saved(
        "test_my_app.py", command="python -m pytest -p no:cacheprovider -o asyncio_mode=auto"
    ),
    ("first-steps", "READER = "): Saved("my_app.py"),
}


def entries_for(table: Mapping[tuple[str, str], T], step: Step) -> list[T]:
    """Return the values of ``table`` for ``step``."""
    return [value for (page, text), value in table.items() if page == step.page and text in step.text]


def first_entry(table: Mapping[tuple[str, str], T], step: Step, default: T) -> T:
    """Return the first value of ``table`` for ``step``, or ``default``."""
    return next(iter(entries_for(table, step)), default)


def stale_entries() -> list[tuple[str, str]]:
    """Return the entries of all tables, each with its page, that belong to no step."""
    entries = [key for table in (SKIPPED, BEFORE, RESULTS, SAVED) for key in table]
    entries += [(page, text) for page, placeholders in PLACEHOLDERS.items() for text in placeholders]
    return [(page, text) for page, text in entries if not any(text in step.text for step in read_steps(page))]


def skipped_reason(step: Step) -> str:
    """Return why ``step`` cannot run here, or ""."""
    return first_entry(SKIPPED, step, "")
