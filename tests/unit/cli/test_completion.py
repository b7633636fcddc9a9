"""Completion of the commands in a real bash."""

import shlex
import subprocess
from pathlib import Path

import pytest

from omnibus.cli import main


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `omnibus completion bash`."""
    script_path = tmp_path_factory.mktemp("completion") / "omnibus.bash"
    with pytest.MonkeyPatch.context() as patch, script_path.open("w") as out:
        patch.setattr("sys.stdout", out)
        assert main(["completion", "bash"]) == 0
    return script_path


@pytest.mark.parametrize(
    ("line", "expected_words"),
    [
        ("pl", {"plan"}),
        ("plan ", {"show", "diff", "history", "rollback", "resume", "cells"}),
        ("up --no", {"--nodes", "--no-models"}),
        ("up --models de", {"declared.json"}),
        ("up --apps-dir ", {"apps"}),
        ("completion ", {"bash", "zsh", "tcsh"}),
        ("up --only de", set()),
    ],
)
def test_bash_completes(script: Path, tmp_path: Path, line: str, expected_words: set[str]):
    (tmp_path / "declared.json").touch()
    (tmp_path / "apps").mkdir()
    words = ["omnibus", *line.split(" ")]
    commands = [
        f"source {shlex.quote(str(script))}",
        f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}",
        "_shtab_omnibus",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]

    process = subprocess.run(
        ["bash", "-c", "\n".join(commands)], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True
    )

    assert process.stderr == ""
    assert {word.rstrip("/") for word in process.stdout.split()} == expected_words


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_every_shell_gets_a_script_that_names_all_commands(shell: str, capsys: pytest.CaptureFixture[str]):
    assert main(["completion", shell]) == 0

    output = capsys.readouterr().out
    assert all(command in output for command in ("up", "replay", "deadletters", "nats-config", "--apps-dir"))
