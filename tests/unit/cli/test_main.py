"""The ``omnibus`` command: arguments, errors, exit codes."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from omnibus import __version__
from omnibus.cli import main
from omnibus.cli.help_texts import EXAMPLES, GROUPS
from omnibus.cli.main import _HANDLERS, _build_parser


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["show"],
        ["replay"],
        ["up", "--port", "eighty"],
        ["tail", "--yaml"],
        ["show", "a", "--quiet"],
        ["show", "a", "b"],
        ["demo", "--picture", "x"],
        ["app"],
        ["app", "invoke"],
        ["app", "run"],
        ["app", "list", "echo"],
        ["tasks", "echo"],
        ["models"],
        ["models", "check"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_explained_with_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert re.fullmatch(r"omnibus: .* \(`omnibus [a-z -]*--help`\)\n", capsys.readouterr().err)


PLAN = ["plan show", "plan diff", "plan history", "plan rollback", "plan resume"]
APP = ["app register", "app list", "app show", "app invoke", "app update", "app unregister", "app check", "app run"]

MODELS = ["models list", "models show", "models check", "models get", "models tiny"]
ALONE = ["up", "demo", "tail", "show", "replay", "bisect", "tasks", "profile", "top"]
CANARY = ["canary start", "canary status", "canary promote", "canary abort"]


@pytest.mark.parametrize("command", [*ALONE, *PLAN, *APP, *MODELS, *CANARY])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])

    assert caught.value.code == 0
    assert f"usage: omnibus {command}" in capsys.readouterr().out


def test_it_knows_its_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert caught.value.code == 0
    assert capsys.readouterr().out == f"omnibus {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--models", "/none/models.json"], "/none/models.json: cannot be read: No such file or directory"),
        (
            ["demo", "--model", "gpt"],
            "the demo runs qwen2.5-vl-tiny or qwen2.5-omni-tiny or qwen2.5-omni-world, not gpt",
        ),
        (["demo", "--image", "/none.jpg"], "/none.jpg: No such file or directory"),
        (["demo", "--model", "qwen2.5-vl-tiny", "--audio", "/x.wav"], "does not accept audio"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == (78 if arguments[0] == "up" else 1)

    error = capsys.readouterr().err
    assert error.startswith("omnibus: ")
    assert message in error
    assert error.count("\n") == 1


def test_it_runs_as_a_module(tmp_path: Path):
    process = subprocess.run(
        [sys.executable, "-m", "omnibus.cli", "show"], capture_output=True, text=True, timeout=60, check=False
    )

    assert process.returncode == 2
    assert "the following arguments are required: id" in process.stderr


def test_every_command_has_a_function():
    commands = _build_parser()._subparsers._group_actions[0].choices

    assert {name.split()[0] for name in _HANDLERS} == set(commands)
    for handler in _HANDLERS.values():
        module, _, function = handler.partition(":")
        assert callable(getattr(importlib.import_module(f"omnibus.cli.{module}"), function))


def test_every_command_is_listed_below_one_heading():
    commands = _build_parser()._subparsers._group_actions[0].choices

    assert sorted(name for names in GROUPS.values() for name in names) == sorted(commands)
    command_names = re.findall(r"^    ([a-z-]+)  ", _build_parser().format_help(), re.MULTILINE)
    assert command_names == [name for names in GROUPS.values() for name in names]


def test_examples_are_of_commands_that_there_are_and_can_be_parsed(capsys: pytest.CaptureFixture[str]):
    for name, examples in EXAMPLES.items():
        for example in examples:
            inner = re.search(r"\$\((.*)\)", example)
            words = shlex.split(inner[1] if inner else example, comments=True)
            words = words[words.index("omnibus") + 1 :]
            if words[:1] == ["COMMAND"]:
                continue
            assert " ".join(words).startswith(name.split(" ")[0] if "resume" not in words else "plan")
            assert _build_parser().parse_args(words).command == words[0]
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    help_text = capsys.readouterr().out
    assert "Run a recorded invocation again and compare the answers." in help_text
    assert "omnibus replay 4bb189-0-1 --from vocoder" in help_text
