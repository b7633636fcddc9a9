"""The table of mistakes: commands, files, variables, and expected output."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnibus.process.spec import EXIT_MISCONFIGURED

#: Any text, in expected output.
ANY = "…"
#: Exit codes: of a command that failed, and of one that cannot be understood.
FAILED, USAGE = 1, 2


@dataclass(frozen=True)
class Mistake:
    """A mistake: ``command`` in a directory with ``files`` (name to text) and variables ``environ``.

    ``answer`` is the complete output, with ``…`` for parts that vary, ``code`` the exit code.
    """

    what: str
    command: str
    answer: str
    code: int = FAILED
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


def _models_file(**declared: Any) -> dict[str, str]:
    return {"models.json": json.dumps({"models": declared}) + "\n"}


def _make_up(description: str, answer: str, arguments: str = "", **more: Any) -> Mistake:
    return Mistake(description, f"omnibus up {arguments}".rstrip(), f"omnibus: {answer}", EXIT_MISCONFIGURED, **more)


def _make_declared(description: str, answer: str, **declared: Any) -> Mistake:
    return _make_up(description, f"models.json: {answer}", "--models models.json", files=_models_file(**declared))


def _make_setting(description: str, answer: str, **environ: str) -> Mistake:
    return _make_up(description, answer, environ=environ)


_VL = {"family": "qwen2_5_vl", "checkpoint": "checkpoints/vl"}

#: Mistakes that need no running system.
ALONE = [
    Mistake(
        "a command is misspelt",
        "omnibus shwo",
        "omnibus: there is no command 'shwo'; did you mean show? (`omnibus --help`)",
        USAGE,
    ),
    Mistake(
        "an argument is missing",
        "omnibus profile omni",
        "omnibus: the following arguments are required: --workload (`omnibus profile --help`)",
        USAGE,
    ),
    Mistake(
        "nothing runs", "omnibus show 4bb189-0-1", "omnibus: no running Omnibus found; start one with `omnibus up`"
    ),
    Mistake(
        "a run is named that is not up", "omnibus status --run nightly", "omnibus: unknown run nightly: none is running"
    ),
    Mistake(
        "a node without a join file",
        "omnibus node join join.json",
        "omnibus: join.json cannot be read: No such file or directory",
        EXIT_MISCONFIGURED,
    ),
    Mistake(
        "a join file that is another file",
        "omnibus node join join.json",
        "omnibus: join.json is not a file of `omnibus node token`: …",
        EXIT_MISCONFIGURED,
        files={"join.json": "{}"},
    ),
    _make_up(
        "an address that other machines cannot reach",
        "--listen '0.0.0.0' must be an address of this machine that the others reach, as 10.0.0.1",
        "--listen 0.0.0.0",
    ),
    Mistake(
        "the bus is elsewhere",
        "omnibus tail --nats nats://127.0.0.1:1",
        "nats: …Connect call failed ('127.0.0.1', 1)\nomnibus: no NATS server at nats://127.0.0.1:1: …",
    ),
    _make_up(
        "an invalid port",
        "port 99999 must be a number from 1 to 65535, or 0 for a free one",
        "--port 99999",
    ),
    _make_up(
        "the port is taken",
        "port {taken} of 127.0.0.1 is in use (Address already in use): choose another one with --port, 0 for a free one",
        "--port {taken}",
    ),
    _make_up(
        "a file of models that is not there",
        "models.json: cannot be read: No such file or directory",
        "--models models.json",
    ),
    _make_up(
        "JSON that ends too early",
        "models.json: line 2: Expecting property name enclosed in double quotes (column 1)",
        "--models models.json",
        files={"models.json": '{"models": {\n'},
    ),
    _make_up(
        "declarations in YAML",
        'models.yaml: declarations must be JSON: {"models": {"NAME": {"family": "...", "checkpoint": "..."}}}',
        "--models models.yaml",
        files={"models.yaml": "models:\n  vl: {family: qwen2_5_vl}\n"},
    ),
    _make_up(
        "a file without models",
        'models.json: declarations must have models: {"models": {"NAME": {"family": "...", "checkpoint": "..."}}}',
        "--models models.json",
        files={"models.json": '{"modles": {}}\n'},
    ),
    _make_declared(
        "a misspelt field",
        "line 1: Object contains unknown field `famly` - at `$.models[...]`: did you mean `family`?",
        vl={"checkpoint": "checkpoints/vl", "famly": "qwen2_5_vl"},
    ),
    _make_declared(
        "a misspelt family",
        "line 1: model vl: there is no model family 'qwen2.5-vl'; there is …; did you mean qwen2_5_vl?",
        vl={**_VL, "family": "qwen2.5-vl"},
    ),
    _make_declared(
        "a checkpoint that is not there",
        "model vl: checkpoints/vl is not a directory, nor in this machine's cache of the Hugging Face hub: download it with `omnibus models get checkpoints/vl`, or set OMNIBUS_EXECUTOR_DOWNLOAD=1 for executors",
        vl=_VL,
    ),
    _make_declared(
        "a checkpoint of the hub that was not downloaded",
        "model vl: Qwen/Qwen2.5-VL-3B-Instruct is not a directory, nor in this machine's cache of the Hugging Face hub: download it with `omnibus models get Qwen/Qwen2.5-VL-3B-Instruct`, or set OMNIBUS_EXECUTOR_DOWNLOAD=1 for executors",
        vl={**_VL, "checkpoint": "Qwen/Qwen2.5-VL-3B-Instruct"},
    ),
    _make_up(
        "a model that does not ship",
        "unknown tiny model qwen2.5-omni-wrold; there is …; did you mean qwen2.5-omni-world?",
        "--only qwen2.5-omni-wrold",
    ),
    _make_up("no node", "0 nodes: there is one at least", "--nodes 0"),
    _make_up("no gateway", "0 gateways: one at least must run", "--gateways 0"),
    _make_up(
        "a directory of apps that is not there",
        "--apps-dir apps must be a directory that this user can read",
        "--apps-dir apps",
    ),
    _make_up("an app that is not there, beside models", "app.py: file not found", "--app app.py"),
    _make_setting(
        "a misspelt setting",
        "OMNIBUS_GATEWAY_KEYZ is not a setting: did you mean OMNIBUS_GATEWAY_KEYS?",
        OMNIBUS_GATEWAY_KEYZ="true",
    ),
    _make_setting(
        "a setting without its area",
        "OMNIBUS_DTYPE is not a setting: did you mean OMNIBUS_EXECUTOR_DTYPE?",
        OMNIBUS_DTYPE="bfloat16",
    ),
    _make_setting(
        "a setting with a unit",
        "OMNIBUS_GATEWAY_DEADLINE_SECONDS is not a setting: did you mean OMNIBUS_GATEWAY_DEADLINE?",
        OMNIBUS_GATEWAY_DEADLINE_SECONDS="30",
    ),
    _make_setting(
        "a number that is none",
        "OMNIBUS_GATEWAY_DEADLINE='soon': a number is expected",
        OMNIBUS_GATEWAY_DEADLINE="soon",
    ),
    _make_setting(
        "a type that there is not",
        "OMNIBUS_EXECUTOR_DTYPE must be `float32` or `bfloat16` or `float16` or `int8`, not 'float99'",
        OMNIBUS_EXECUTOR_DTYPE="float99",
    ),
    _make_setting(
        "a mode that there is not",
        "OMNIBUS_GATEWAY_RECORD='ful': `full` or `stages` or `digest` is expected",
        OMNIBUS_GATEWAY_RECORD="ful",
    ),
    _make_setting(
        "more shared memory than there is",
        "/dev/shm has … MiB free and 99999999 MiB are required: free some, or reduce OMNIBUS_SIDECAR_ARENA_MIB",
        OMNIBUS_SIDECAR_ARENA_MIB="99999999",
    ),
    _make_setting(
        "a place for runs that is none",
        "/dev/null/omnibus/runs: Not a directory: HOME, XDG_RUNTIME_DIR and TMPDIR name the places that commands write to",
        XDG_RUNTIME_DIR="/dev/null",
    ),
    Mistake(
        "an app with a syntax error",
        "omnibus app check app.py",
        "omnibus: the module app cannot be imported: SyntaxError: invalid syntax (app.py, line 1)",
        files={"app.py": "class App(:\n    pass\n"},
    ),
    Mistake(
        "an app that imports what is not installed",
        "omnibus app check app.py",
        "omnibus: the module app cannot be imported: ModuleNotFoundError: No module named 'nowhere' (app.py, line 1)",
        files={"app.py": "import nowhere\n"},
    ),
    Mistake(
        "an app without an app",
        "omnibus app check app.py",
        "omnibus: the module app is not an app: it has no `serve`: write `async def serve(request): ...`",
        files={"app.py": "ANSWER = 42\n"},
    ),
    Mistake("an app that is not there", "omnibus app check app.py", "omnibus: app.py: file not found"),
    Mistake(
        "a checkpoint that is neither here nor an id",
        "omnibus models check checkpoints/vl",
        "omnibus: checkpoints/vl is not a directory, nor in this machine's cache of the Hugging Face hub: download it with `omnibus models get checkpoints/vl`, or set OMNIBUS_EXECUTOR_DOWNLOAD=1 for executors",
    ),
    Mistake(
        "a workload that is not there",
        "omnibus profile qwen3-tiny --workload requests.json",
        "omnibus: --workload requests.json: cannot read this file",
    ),
    Mistake(
        "a simulation of models that are not there",
        "omnibus whatif --models models.json --rate 2x",
        "omnibus: --models models.json: cannot read this file",
    ),
    Mistake(
        "a shell that is not known",
        "omnibus completion fish",
        "omnibus: there is no shell 'fish'; there is bash, zsh, tcsh (`omnibus completion --help`)",
        USAGE,
    ),
    Mistake(
        "a backup that is not there",
        "omnibus restore yesterday.tar",
        "omnibus: yesterday.tar is not a complete backup: the file does not exist",
    ),
    Mistake(
        "a picture that is none",
        "omnibus demo --image notes.txt",
        "omnibus: notes.txt: The image item is empty or in an unknown format. Accepted formats of image: JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIC.",
        files={"notes.txt": "milk, bread\n"},
    ),
    Mistake(
        "a sound that is not there", "omnibus demo --audio clip.wav", "omnibus: clip.wav: No such file or directory"
    ),
    Mistake(
        "an answer that has no place",
        "omnibus demo --out results/answer.wav",
        "omnibus: --out results/answer.wav: cannot write a file there",
    ),
    Mistake(
        "a model that the demo does not run",
        "omnibus demo --model llama",
        "omnibus: the demo runs qwen2.5-vl-tiny or qwen2.5-omni-tiny or qwen2.5-omni-world, not llama",
    ),
]

#: Mistakes at a running system.
RUNNING = [
    Mistake(
        "an invocation that is not recorded",
        "omnibus show 123",
        "omnibus: no record of invocation 123: watch for ids with `omnibus tail`; it may be too old",
    ),
    Mistake(
        "a plan that was never made",
        "omnibus plan rollback 77",
        "omnibus: there is no plan of epoch 77: `omnibus plan history` lists those that are stored",
    ),
    Mistake(
        "a key that is not there",
        "omnibus keys revoke k77",
        "omnibus: there is no key 'k77': `omnibus keys list` shows them",
    ),
    Mistake(
        "an invalid tenant name",
        "omnibus keys create a/b",
        "omnibus: 'a/b' is not a tenant name: use letters, digits, dot, dash, underscore, at most 64",
    ),
    Mistake(
        "a limit below nothing",
        "omnibus keys create alice --rate -3",
        "omnibus: --rate -3 must be 0 (for no limit) or more",
    ),
    Mistake(
        "an app that is not registered",
        "omnibus app invoke nobody '{}'",
        "omnibus: unknown app 'nobody' (registered apps: …)",
    ),
    Mistake(
        "a request that is not JSON",
        "omnibus app invoke nobody '{'",
        "omnibus: the request must be JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    Mistake(
        "a dead letter that is not there",
        "omnibus deadletters retry 123",
        "omnibus: no dead letter of invocation 123: `omnibus deadletters` lists those that there are",
    ),
    Mistake(
        "a machine that is not there",
        "omnibus node drain n7",
        "omnibus: no node n7 is up: `omnibus nodes` lists them",
    ),
    Mistake(
        "a join file of a system that is closed to other machines",
        "omnibus node token join.json",
        "omnibus: … is closed to other machines: start it with `omnibus up --listen ADDRESS`",
    ),
    Mistake(
        "a process that is not there",
        "omnibus logs thinker",
        "omnibus: no process thinker of … has logged anything; there is …",
    ),
    Mistake(
        "a run that is not up, beside one that is",
        "omnibus env --run other",
        "omnibus: unknown run other: running are …",
    ),
]
