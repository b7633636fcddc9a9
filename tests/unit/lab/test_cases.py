"""The shared cases: each kind of question, with independently found answers."""

import json
from pathlib import Path

import pytest

from omnibus.errors import BadRequest
from omnibus_planner.solve.constraints import replica_vector
from omnibus_planner.solve.solver import Solver
from tests.lab import answers, cases

CASES = Path(__file__).parent / "cases.json"
#: Fields that may differ between solvers.
FREE = {"one_optimal_r", "one_optimal_mixture", "one_optimal_placement", "R_exact", "brute_vectors", "seconds"}


def read_cases():
    return {case["id"]: case for case in json.loads(CASES.read_bytes())}


def make_near(value):
    """Return ``value`` with a tolerance of one in a million for numbers."""
    if isinstance(value, dict):
        return {key: make_near(each) for key, each in value.items()}
    if isinstance(value, list):
        return [make_near(each) for each in value]
    return pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, float) else value


def find_answer(case):
    return answers.answer_case(cases.parse_case(case))


@pytest.mark.parametrize("case", read_cases().values(), ids=lambda case: case["id"])
def test_an_answer_is_as_it_is_known(case):
    answer = find_answer(case)

    for key, value in case["answer"].items():
        if key not in FREE:
            assert answer[key] == make_near(value), key
    assert "gap" not in answer


@pytest.mark.parametrize(
    "case", [case for case in read_cases().values() if case["kind"] == "budget"], ids=lambda c: c["id"]
)
def test_the_replicas_of_an_answer_serve_its_rate(case):
    network = cases.parse_case(case).require_instance().build_network()
    frame = Solver(network).frame

    answer = find_answer(case)

    assert frame.solve_flow(
        replica_vector(frame, answer["one_optimal_r"]), network.type_shares()
    ).rate == pytest.approx(answer["R"], rel=1e-9)


def test_seconds_of_the_profile_are_right_to_nine_decimals():
    case = read_cases()["alg3-01"]

    answer_seconds = find_answer(case)["seconds"]

    def index_rows(seconds):
        return {(row["option"], row["type"], row["path"]): round(row["sec"], 9) for row in seconds}

    assert index_rows(answer_seconds) == index_rows(case["answer"]["seconds"])


def test_nothing_fits_and_nothing_is_served():
    case = read_cases()["budget-01"]
    case["task"]["gpus"] = 0

    assert find_answer(case)["R"] == 0


def test_a_request_type_without_a_path_is_served_by_no_number_of_gpus():
    budget, least = read_cases()["budget-01"], read_cases()["mingpu-01"]
    for case in (budget, least):
        case["instance"]["paths"]["t0"] = []
        case["instance"]["seconds"] = [row for row in case["instance"]["seconds"] if row["type"] != "t0"]

    assert find_answer(budget)["R"] == 0
    assert find_answer(least)["gpus"] is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"kind": "guess"}, "of kind 'guess'; there is alg3, binary"),
        ({"task": {"gpus": "six"}}, "the task of case budget-01: Expected `int`"),
        ({"task": {"gpus": -1}}, "-1 GPUs"),
        ({"instance": None}, "has no instance"),
        ({"instance": {"components": []}}, "missing required field `options`"),
    ],
)
def test_a_wrong_case_is_refused_by_name(change, fault):
    with pytest.raises(BadRequest, match=fault):
        find_answer({**read_cases()["budget-01"], **change})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda i: i["seconds"][0].update(sec=-1), "seconds of option .* is -1"),
        (lambda i: i["seconds"][0].update(sec=float("nan")), "seconds of option .* is nan"),
        (lambda i: i["seconds"][0].update(path=99), "there is no such path"),
        (lambda i: i["seconds"].append(dict(i["seconds"][0])), "seconds twice"),
        (lambda i: i["types"]["t0"].update(pi=float("inf")), "the share of request type t0 is inf"),
        (lambda i: i["options"]["o0"].update(gpus=0), "option o0 has 0 GPUs"),
        (lambda i: i["order"].append(["c1", "c0"]), "a cycle among c0, c1"),
        (lambda i: i["order"].append(["c1", "c9"]), "names c9; there is c0, c1"),
        (lambda i: i["paths"]["t1"].append(["o0"]), "does not run c1, c2"),
        (lambda i: i["paths"]["t1"].append(["o1"]), "runs o1 before what it waits for"),
        (lambda i: i["paths"]["t0"].append(["o0", "o0"]), "has nothing left to run on o0"),
        (lambda i: i["paths"]["t0"].append(["o9"]), "uses option 'o9'"),
        (lambda i: i["paths"].update(t9=[]), "paths of 't9'"),
    ],
)
def test_a_wrong_instance_is_refused_by_name(change, fault):
    case = read_cases()["budget-01"]
    change(case["instance"])

    with pytest.raises(BadRequest, match=fault):
        find_answer(case)


def test_an_empty_workload_is_refused():
    case = read_cases()["budget-01"]
    for kind in case["instance"]["types"].values():
        kind["pi"] = 0

    with pytest.raises(BadRequest, match="the workload is empty"):
        find_answer(case)


def test_a_file_without_cases_is_refused(tmp_path):
    path = tmp_path / "cases.json"
    for text, fault in (("{", "is no JSON"), ("{}", "no list of cases"), ('[{"id": "a"}, {"id": "a"}]', "same id")):
        path.write_text(text)

        with pytest.raises(BadRequest, match=fault):
            cases.read_cases(str(path))
