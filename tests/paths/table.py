"""The paths: their commands, expected outputs, and your own files."""

from dataclasses import dataclass

WORLD_PORT, UP = "8000", ".venv/bin/omnibus up"
PLANNED = f"{UP} --models examples/simulated/models.json"
APP = """from omnibus.task import MLLM, ChatInput, Think

READER = MLLM(encoders={}, thinker=Think(model="qwen2.5-omni-world", component="thinker"))


async def serve(request: str) -> str:
    found = await READER(ChatInput.of(f"Say {request}"))
    return (await found.text).upper()
"""
ASK = """curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "qwen2.5-omni-world", "messages": [{"role": "user", "content": "Say two red circles on blue"}]}'"""


@dataclass(frozen=True)
class Command:
    """A command as in ``page``, and a pattern for its output.

    A group of the regular expression named ``id`` replaces ``ID`` in later commands. ``ending`` stops a command that
    would run until Ctrl-C.
    """

    text: str
    right: str
    page: str
    ending: str = ""


@dataclass(frozen=True)
class Path:
    """A way from a directory with nothing running to ``goal``.

    It begins with the command ``system`` if it needs a running system. Paths with the same beginning may share that.
    ``beyond`` are commands of the same page that are tried there but do not belong to the path.
    """

    name: str
    goal: str
    system: Command | None
    commands: tuple[Command, ...]
    files: tuple[tuple[str, str], ...] = ()
    beyond: tuple[Command, ...] = ()


_WORLD = Command(UP, "is up", "README.md")
PATHS = (
    Path(
        "answer",
        "the first right answer",
        _WORLD,
        (Command(ASK, r'"id": ?"chatcmpl-(?P<id>[^"]+)".*two red circles on blue', "README.md"),),
    ),
    Path(
        "app",
        "an app of your own",
        _WORLD,
        (
            Command("omnibus app register my_app.py", "my_app", "docs/apps.md"),
            Command(
                "omnibus app invoke my_app '\"a green square on white\"'",
                "^A GREEN SQUARE ON WHITE$",
                "docs/first-steps.md",
            ),
        ),
        (("my_app.py", APP),),
    ),
    Path(
        "graph",
        "a graph of your own",
        None,
        (
            Command(
                """.venv/bin/omnibus app run examples/shout.py '{"text": "hello out there"}'""",
                "^HELLO OUT THERE! HELLO OUT THERE! $",
                "docs/first-steps.md",
            ),
        ),
    ),
    Path(
        "replay",
        "a replay that is identical",
        _WORLD,
        (
            Command(ASK, r'"id": ?"chatcmpl-(?P<id>[^"]+)"', "README.md"),
            Command(".venv/bin/omnibus show ID", r"status  done", "README.md"),
            Command(".venv/bin/omnibus replay ID", "identical to the recorded answer", "README.md"),
        ),
    ),
    Path(
        "plan",
        "a plan for 16 simulated GPUs",
        Command(PLANNED, "is up", "docs/first-steps.md"),
        (Command(".venv/bin/omnibus plan show", "H100 16 of 16", "docs/first-steps.md"),),
        beyond=(Command(".venv/bin/omnibus top", "omni/Th", "docs/first-steps.md", "--once"),),
    ),
)
