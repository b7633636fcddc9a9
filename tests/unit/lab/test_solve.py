"""``python -m tests.lab.solve``: one JSON object on stdout, errors on stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CASES = Path(__file__).parent / "cases.json"


def run_solve(*arguments, cwd):
    roots = os.pathsep.join([str(ROOT), str(ROOT / "shared"), str(ROOT / "services" / "planner")])
    environment = {**os.environ, "PYTHONPATH": roots}
    command = [sys.executable, "-m", "tests.lab.solve", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_all_cases_are_answered_in_one_object(tmp_path):
    process = run_solve(CASES, cwd=tmp_path)

    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout).keys() == {case["id"] for case in json.loads(CASES.read_bytes())}
    assert process.stdout.count("\n") == 1
    assert process.stderr == ""


def test_one_wrong_case_does_not_spoil_the_others(tmp_path):
    cases_by_id = {case["id"]: case for case in json.loads(CASES.read_bytes())}
    good, wrong = cases_by_id["binary-01"], cases_by_id["mixture-01"]
    wrong["task"]["cells"][0]["R"] = float("nan")
    (tmp_path / "two.json").write_text(json.dumps([wrong, good]))

    process = run_solve("two.json", cwd=tmp_path)

    answers = json.loads(process.stdout)
    assert process.returncode == 1
    assert answers["binary-01"]["R"] == 34.33
    assert answers["mixture-01"]["error"]["code"] == "bad_request"
    assert "case mixture-01: the rate of the cell of 1 GPUs is nan" in process.stderr


def test_a_file_that_is_not_there_is_said_in_one_line(tmp_path):
    process = run_solve("none.json", cwd=tmp_path)

    assert process.returncode == 1
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert "none.json cannot be read" in process.stderr
