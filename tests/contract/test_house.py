"""House rules without a linter: short files, no unsafe calls, closed ports, no private addresses."""

import ast
import re
import subprocess
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

import omnibus
from tools.naming import read_names

ROOT = Path(__file__).parents[2]
LONGEST, LONG = 500, 300  # lines
PYTHON = sorted(path for room in ("shared", "services", "tools", "tests") for path in (ROOT / room).rglob("*.py"))
SOURCE = [path for path in PYTHON if "tests" not in path.relative_to(ROOT).parts]

UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
UNSAFE_ARGUMENTS = {("weights_only", False), ("shell", True), ("allow_pickle", True), ("trust_remote_code", True)}
#: File to the reason why it may name the address of all interfaces.
OPEN_TO_ALL: dict[str, str] = {}
OPEN = ("0.0.0" + ".0", "::")
# Written in parts, so that this file does not hold them itself.
_HOSTS = ("py" + "pi.org", "python" + "hosted.org", "registry.npm" + "js", "deb.deb" + "ian.org")
REGISTRIES = re.compile("|".join(map(re.escape, _HOSTS)).encode())


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parse_nodes(path: Path, words: Iterable[str]) -> Iterator[ast.AST]:
    """Nodes of a file that contains one of ``words``; other files are not parsed."""
    text = path.read_text()
    if any(word in text for word in words):
        yield from ast.walk(ast.parse(text, str(path)))


def text_files() -> list[Path]:
    """Files that git would commit, or every file without git."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    return [ROOT / name for name in process.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_files_fit_into_a_head():
    lines = {relative_name(path): len(path.read_text().splitlines()) for path in PYTHON}

    assert {name: count for name, count in lines.items() if count > LONGEST} == {}, "is there a room of its own in it?"
    long = {relative_name(path): lines[relative_name(path)] for path in SOURCE if lines[relative_name(path)] > LONG}
    warnings.warn(f"{LONG} lines are enough for most files: {long}", stacklevel=1)


def test_nothing_deserialises_objects_or_runs_text():
    words = (*UNSAFE_MODULES, *UNSAFE_CALLS, "torch.load", *(name for name, _ in UNSAFE_ARGUMENTS))
    faults = {
        relative_name(path): [each for node in parse_nodes(path, words) for each in describe_fault(node)]
        for path in PYTHON
    }

    assert {name: each for name, each in faults.items() if each} == {}


def test_nothing_listens_on_all_interfaces_by_default():
    names = {relative_name(path) for path in SOURCE for node in parse_nodes(path, OPEN) if _is_open_to_all(node)}

    assert names - OPEN_TO_ALL.keys() == set()


def test_names_and_docstrings_speak_to_readers_who_are_new_here():
    names = read_names()

    assert len(names.functions) > 4000
    assert len(names.docstrings) > 4000
    assert names.clauses == [], "docstrings begin with a noun or a verb"
    assert names.private_names == [], "use the field's term instead (PRIVATE_WORDS in tools/naming.py)"
    assert names.shared_classes == [], "a class needs a name of its own"
    assert names.one_word_share <= 0.2


def test_no_file_names_a_package_registry():
    registries = {}
    for path in text_files():
        if match := REGISTRIES.search(path.read_bytes()):
            registries[relative_name(path)] = match[0].decode()

    assert registries == {}


def test_the_package_its_metadata_and_the_chart_have_the_same_version():
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((ROOT / "deploy/helm/omnibus/Chart.yaml").read_text())

    assert {metadata["version"], chart["version"], str(chart["appVersion"])} == {omnibus.__version__}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "import dill.source",
        "eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
    ],
)
def test_the_rules_catch_what_they_are_for(code):
    assert [fault for node in ast.walk(ast.parse(code)) for fault in describe_fault(node)]


@pytest.mark.parametrize(
    "code", ["re.compile(x)", "model.eval()", "import json", "torch.load(path, weights_only=True)"]
)
def test_the_rules_leave_harmless_code_alone(code):
    assert not [fault for node in ast.walk(ast.parse(code)) for fault in describe_fault(node)]


def _is_open_to_all(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in OPEN


def describe_fault(node: ast.AST) -> list[str]:
    """Describe the fault of ``node``; empty if there is none."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names if name.name.split(".")[0] in UNSAFE_MODULES]
    if isinstance(node, ast.ImportFrom):
        return [node.module] if node.module and node.module.split(".")[0] in UNSAFE_MODULES else []
    if isinstance(node, ast.Call):
        return _unsafe_call(node)
    return []


def _unsafe_call(call: ast.Call) -> list[str]:
    name = _dotted_name(call.func)
    faults = [name] if name in UNSAFE_CALLS else []
    for argument in call.keywords:
        value = argument.value
        if isinstance(value, ast.Constant) and (argument.arg, value.value) in UNSAFE_ARGUMENTS:
            faults.append(f"{name}({argument.arg}={value.value!r})")
    if name == "torch.load" and not _sets_argument(call, "weights_only"):
        faults.append("torch.load without weights_only=True")
    return faults


def _dotted_name(function: ast.expr) -> str:
    """Return the dotted name of ``function``; ``...`` stands for other expressions."""
    if isinstance(function, ast.Attribute):
        return f"{_dotted_name(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else "..."


def _sets_argument(call: ast.Call, name: str) -> bool:
    return any(argument.arg == name and ast.unparse(argument.value) == "True" for argument in call.keywords)
