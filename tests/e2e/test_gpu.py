"""The check of engines on a GPU works: here on the CPU, with tiny models whose answers must be equal."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

_MODELS = ("text", "images", "sentences")


def test_tiny_models_answer_like_the_libraries(tmp_path: Path):
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "tests.gpu", "--tiny", "--out", str(result), "--only", *_MODELS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert {row["model"] for row in rows} == {"all", *_MODELS}
    shares = [row["ours"] for row in rows if row["what"].startswith(("share", "smallest"))]
    assert len(shares) == len(_MODELS)
    assert min(shares) > 1 - 1e-5
