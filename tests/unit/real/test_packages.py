"""Tasks with trained weights are declared without their packages, and use the threads of their executor."""

import os
import subprocess
import sys

import pytest

from omnibus.errors import Fatal
from omnibus_real import packages

ENGINES = {"ctranslate2", "cv2", "faster_whisper", "onnxruntime", "rapidocr", "torch", "transformers"}


def test_declaring_tasks_imports_none_of_their_engines():
    code = "import sys, omnibus_real; print(*sys.modules)"

    modules = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).split()

    assert ENGINES.intersection(modules) == set()


@pytest.mark.parametrize("find", [packages.package_directory, packages.import_package])
def test_a_missing_package_is_named_with_the_command_that_installs_it(find):
    with pytest.raises(Fatal, match=r"'weights_of_nobody' is not installed.*omnibus-serve\[real\]"):
        find("weights_of_nobody")


@pytest.mark.parametrize(("setting", "threads"), [("3", 3), ("0", len(os.sched_getaffinity(0)))])
def test_threads_are_those_of_the_executor(monkeypatch: pytest.MonkeyPatch, setting: str, threads: int):
    monkeypatch.setenv("OMNIBUS_EXECUTOR_THREADS", setting)

    assert packages.count_threads() == threads
