"""``python -m tests.lab.solve FILE``: answers to the cases of a file, as one JSON object on stdout."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from omnibus.errors import OmnibusError
from omnibus_planner.solve import highs
from tests.lab import answers, cases


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return 0 if every case was answered, else 1.

    A failed case has its error as answer, and a line on stderr.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.solve", description="Print {id: answer} for the cases of a JSON file."
    )
    parser.add_argument("file", help="a JSON list of cases")
    parser.add_argument(
        "--within", type=_positive_seconds, default=60.0, metavar="SECONDS", help="for each case (default 60)"
    )
    options = parser.parse_args(arguments)
    try:
        case_inputs = cases.read_cases(options.file)
    except OmnibusError as error:
        sys.stderr.write(f"omnibus: {error}\n")
        return 1
    with highs.silence_stdout():
        case_answers, faults = _answer_cases(case_inputs, options.within)
    sys.stdout.buffer.write(msgspec.json.encode(case_answers) + b"\n")
    sys.stdout.flush()
    sys.stderr.writelines(f"omnibus: {fault}\n" for fault in faults)
    return 1 if faults else 0


def _positive_seconds(text: str) -> float:
    if not float(text) > 0:
        raise ValueError(text)
    return float(text)


def _answer_cases(case_inputs: Mapping[str, Any], within: float) -> tuple[dict[str, answers.Answer], list[str]]:
    case_answers: dict[str, answers.Answer] = {}
    faults: list[str] = []
    for name, value in case_inputs.items():
        try:
            case_answers[name] = answers.answer_case(cases.parse_case(value), within)
        except OmnibusError as error:
            case_answers[name] = {"error": msgspec.to_builtins(error.to_problem())}
            faults.append(f"case {name}: {error}")
    return case_answers, faults


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
