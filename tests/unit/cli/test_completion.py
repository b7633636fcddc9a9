"""Completion of the commands in a real bash."""

import shlex
import subprocess
from pathlib import Path

import pytest

from omnibus.cli import main


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `omnibus completion bash`."""
    made = tmp_path_factory.mktemp("completion") / "omnibus.bash"
    with pytest.MonkeyPatch.context() as patch, made.open("w") as out:
        patch.setattr("sys.stdout", out)
        assert main(["completion", "bash"]) == 0
    return made


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pl", {"plan"}),
        ("plan ", {"show", "diff", "history", "rollback", "resume", "cells", "solve"}),
        ("up --no", {"--nodes", "--no-models"}),
        ("up --models de", {"declared.json"}),
        ("up --apps-dir ", {"apps"}),
        ("completion ", {"bash", "zsh", "tcsh"}),
        ("up --only de", set()),
    ],
)
def test_bash_completes(script: Path, tmp_path: Path, line: str, expected: set[str]):
    (tmp_path / "declared.json").touch()
    (tmp_path / "apps").mkdir()
    words = ["omnibus", *line.split(" ")]
    commands = [
        f"source {shlex.quote(str(script))}",
        f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}",
        "_shtab_omnibus",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]

    found = subprocess.run(
        ["bash", "-c", "\n".join(commands)], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True
    )

    assert found.stderr == ""
    assert {word.rstrip("/") for word in found.stdout.split()} == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_every_shell_gets_a_script_that_names_all_commands(shell: str, capsys: pytest.CaptureFixture[str]):
    assert main(["completion", shell]) == 0

    printed = capsys.readouterr().out
    assert all(command in printed for command in ("up", "replay", "deadletters", "nats-config", "--apps-dir"))
