"""Solver inputs: components and options are validated, profiles become seconds, options become arcs."""

import math

import pytest

from omnibus.errors import BadRequest
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.cost_fit import Measured, SecondsLine, fit_profile, measured_seconds
from omnibus_planner.solve.enumerate import Gpu, bounded_seconds, enumerate_options, kv_rate
from omnibus_planner.solve.flow_network import build_lattice
from omnibus_planner.solve.problem import Infeasible, PlanningProblem, RequestType, SolverOption, check_problem
from omnibus_planner.solve.solver import Solver
from tests.lab.listed_paths import listed_paths


def make_problem(options=None, types=None, order=(("E", "L"),), components=("E", "L"), **more):
    options = options or {"E": SolverOption(("E",)), "L": SolverOption(("L",)), "EL": SolverOption(("E", "L"))}
    types = types or {"txt": RequestType(("L",), 0.3), "img": RequestType(("E", "L"), 0.7)}
    return PlanningProblem(components, options, types, order, **more)


# Problems


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (make_problem(components=()), "there is no component"),
        (make_problem(components=("E", "L", "E")), "a component is named twice"),
        (make_problem(components=tuple(map(str, range(17)))), "17 components are more than 16"),
        (make_problem(order=(("E", "L"), ("L", "E"))), "a cycle among E, L"),
        (make_problem(order=(("E", "E"),)), "a cycle among E"),
        (make_problem(order=(("E", "X"),)), "the order E before X names X; there is E, L"),
        (make_problem({"E": SolverOption(())}), "option E has no component"),
        (make_problem({"E": SolverOption(("E", "E"))}), "option E names a component twice"),
        (make_problem({"E": SolverOption(("X",))}), "option E names X"),
        (make_problem({"E": SolverOption(("E",), 0)}), "option E has 0 GPUs"),
        (make_problem({"E": SolverOption(("E",), 4, tp=3)}), "option E splits 4 GPUs into groups of 3"),
        (make_problem({"E>L": SolverOption(("E",))}), "option 'E>L' has no name, or one with '>'"),
        (make_problem({"E": SolverOption(("E",), price=math.nan)}), "the price of option E is nan"),
        (make_problem({"E": SolverOption(("E",), start_s=-1)}), "start_s of option E is -1"),
        (make_problem(types={"img": RequestType((), 1.0)}), "request type img has no component"),
        (make_problem(types={"img": RequestType(("L",), math.nan)}), "the share of request type img is nan"),
        (make_problem(types={"img": RequestType(("L",), -0.5)}), "the share of request type img is -0.5"),
    ],
)
def test_a_wrong_problem_is_refused_by_name(wrong, fault):
    with pytest.raises(BadRequest, match=fault):
        check_problem(wrong)


def test_an_order_over_a_missing_component_holds_when_it_is_said_to():
    components, order = ("a", "b", "c"), (("a", "b"), ("b", "c"))
    options = {"a": SolverOption(("a",)), "c": SolverOption(("c",))}
    types = {"t": RequestType(("a", "c"), 1.0)}
    free, ordered_problem = (
        make_problem(options, types, order, components, transitive=is_transitive) for is_transitive in (False, True)
    )

    paths = [("c", "a")]

    assert listed_paths(free, {"t": paths}, {}).arcs
    with pytest.raises(BadRequest, match="runs c before what it waits for"):
        listed_paths(ordered_problem, {"t": paths}, {})
    assert len(build_lattice(free, lambda *_: 1.0).arcs) == 4
    assert len(build_lattice(ordered_problem, lambda *_: 1.0).arcs) == 2


# Options


def test_options_are_all_sets_that_fit():
    options = enumerate_options({"E": 2.0, "L": 30.0, "G": 4.0}, {"a": Gpu(40.0), "b": Gpu(80.0, price=2.0)}, (1, 2))

    assert len(options) == 7 * 2 * 2
    assert options["L@a"] == SolverOption(("L",), 1, "a", 1, 30.0, 1.0, 1.0)
    assert options["E+L+G-tp2@b"] == SolverOption(("E", "L", "G"), 2, "b", 2, 36.0, 4.0, 3.0)


def test_a_model_that_fits_no_single_gpu_is_split_over_several():
    options = enumerate_options({"E": 2.0, "L": 90.0}, {"": Gpu(80.0)}, (1, 2, 4))

    assert set(options) == {"E", "E-tp2", "E-tp4", "L-tp2", "L-tp4", "E+L-tp2", "E+L-tp4"}
    with pytest.raises(Infeasible, match="L: the weights fit no GPU, not even 1"):
        enumerate_options({"E": 2.0, "L": 90.0}, {"": Gpu(80.0)})


def test_sets_may_be_named():
    options = enumerate_options({"E": 2.0, "P": 9.0, "D": 9.0}, {"": Gpu(80.0)}, only=[("E",), ("P", "D"), ("D", "E")])

    assert [option.components for option in options.values()] == [("E",), ("P", "D"), ("E", "D")]
    with pytest.raises(BadRequest, match="an option of X; there is"):
        enumerate_options({"E": 2.0}, {"": Gpu(80.0)}, only=[("X",)])


def test_memory_for_keys_and_values_bounds_the_rate():
    rate = kv_rate(free_gb=40.0, kv_gb_per_token=0.0001, tokens=5000, latency_s=20.0, gamma=0.9)

    assert rate == pytest.approx(3.6)
    assert bounded_seconds(0.1, rate) == pytest.approx(1 / 3.6)
    assert bounded_seconds(0.5, rate) == 0.5
    assert kv_rate(40.0, 0.0, 5000, 20.0) == math.inf
    with pytest.raises(BadRequest, match="no memory for keys and values"):
        bounded_seconds(0.1, kv_rate(-1.0, 0.0001, 5000, 20.0))


# Profiles


def test_the_profile_of_a_colocated_option_gives_its_factor():
    fit = fit_profile(make_problem(), {"E": 4.0, "L": 2.0, "EL": 1.0})

    assert fit.component_seconds() == pytest.approx({"E": 0.25 / 0.7, "L": 0.5})
    assert fit.alpha == pytest.approx({"E": 1.0, "L": 1.0, "EL": 4 / 3})
    assert fit.option_seconds("img", "EL", ("E", "L")) == pytest.approx(4 / 3 * (0.25 / 0.7 + 0.5))
    mix = 0.3 * fit.option_seconds("txt", "EL", ("L",)) + 0.7 * fit.option_seconds("img", "EL", ("E", "L"))
    assert mix == pytest.approx(1.0)


def test_two_degrees_of_one_component_keep_their_own_rates():
    options = {"L": SolverOption(("L",)), "L-tp2": SolverOption(("L",), 2)}
    fit = fit_profile(make_problem(options, {"txt": RequestType(("L",), 1.0)}), {"L": 2.0, "L-tp2": 3.0})

    assert fit.option_seconds("txt", "L-tp2", ("L",)) == pytest.approx(1 / 3)


def test_a_component_that_nobody_uses_needs_no_profile():
    fit = fit_profile(
        make_problem(types={"txt": RequestType(("L",), 1.0), "img": RequestType(("E", "L"), 0.0)}), {"L": 2.0}
    )

    assert fit.component_seconds() == {"L": 0.5}
    assert fit.option_seconds("txt", "EL", ("L",)) is None


@pytest.mark.parametrize(
    ("rates", "fault"),
    [
        ({"L": 2.0}, "component E is used but was profiled in no option of its own"),
        ({"E": 0.0, "L": 2.0}, "option E serves 0 req/s"),
        ({"E": math.nan, "L": 2.0}, "the profile of option E is nan"),
        ({"X": 1.0}, "measures option 'X', which is not declared"),
    ],
)
def test_a_wrong_profile_is_refused_by_name(rates, fault):
    with pytest.raises(BadRequest, match=fault):
        fit_profile(make_problem(), rates)


def test_tokens_make_a_long_video_cost_more_than_a_picture():
    types = {"img": RequestType(("E", "L"), 0.5), "video": RequestType(("E", "L"), 0.5)}
    lines = {"E": SecondsLine(0.01, 1e-5), "L": SecondsLine(0.05, 2e-5)}
    tokens = {"img": {"E": 600, "L": 600}, "video": {"E": 10_000, "L": 10_000}}

    fit = fit_profile(make_problem(types=types), {"E": 10.0, "EL": 2.0}, lines, tokens)

    assert fit.tau["video", "L"] == pytest.approx(0.25)
    assert fit.alpha["E"] == pytest.approx(0.1 / (0.5 * 0.016 + 0.5 * 0.11))
    assert fit.option_seconds("video", "EL", ("L",)) / fit.option_seconds("img", "EL", ("L",)) == pytest.approx(
        0.25 / 0.062
    )
    with pytest.raises(BadRequest, match="component L of request type img has no line"):
        fit_profile(make_problem(types=types), {"E": 10.0}, {"E": lines["E"]}, tokens)


def test_what_was_measured_goes_before_what_was_derived():
    fit = fit_profile(make_problem(), {"E": 4.0, "L": 2.0, "EL": 1.0})
    rows = [Measured("EL", ("L",), 0.6), Measured("EL", ("L", "E"), 0.9, "img"), Measured("E", ("E",), 0.2)]

    seconds = measured_seconds(rows, fit.option_seconds)

    assert seconds("txt", "EL", ("L",)) == 0.6
    assert seconds("img", "EL", ("E", "L")) == 0.9
    assert seconds("img", "L", ("L",)) == pytest.approx(0.5)
    assert measured_seconds(rows)("img", "L", ("L",)) is None
    with pytest.raises(BadRequest, match="seconds of option E is -1"):
        measured_seconds([Measured("E", ("E",), -1.0)])


# Networks


def test_encode_prefill_and_decode_are_ordinary_components():
    weights = {"E": 1.0, "P": 10.0, "D": 10.0}
    options = enumerate_options(weights, {"": Gpu(80.0)}, only=["E", "P", "D", "EP", "ED", "PD", "EPD"])
    types = {"img": RequestType(("E", "P", "D"), 0.6), "txt": RequestType(("P", "D"), 0.4)}
    planning_problem = PlanningProblem(tuple(weights), options, types, (("E", "P"), ("P", "D")))
    tau = {"E": 0.4, "P": 0.2, "D": 0.9}

    # An encoder with the decoder costs nothing here; a prefill with it doubles both.
    solution = Solver(build_lattice(
        planning_problem, lambda kind, name, role: sum(tau[part] for part in role) * (2.0 if "P+D" in name else 1.0)
    )).solve_most(Terms(gpus={"": 8}))  # fmt: skip

    assert not any("P+D" in name for name in solution.replicas)
    assert {"E+D", "P"} & set(solution.replicas)


def test_an_encoder_and_then_what_could_encode_too_is_a_path():
    network = build_lattice(make_problem(), lambda kind, name, role: 1.0)

    arcs = {(network.types[a.kind], network.option_names[a.uses[0].option], a.uses[0].role) for a in network.arcs}

    assert ("img", "E", ("E",)) in arcs
    assert ("img", "EL", ("L",)) in arcs
    assert ("img", "EL", ("E", "L")) in arcs
    assert ("img", "L", ("E",)) not in arcs


def in_three(options: dict[str, SolverOption]) -> PlanningProblem:
    types = {"img": RequestType(("E", "P", "D"), 1.0)}
    return PlanningProblem(("E", "P", "D"), options, types, (("E", "P"), ("P", "D")))


def test_an_option_is_visited_again_where_another_runs_in_between():
    planning_problem = in_three({"ED": SolverOption(("E", "D")), "P": SolverOption(("P",))})
    network = build_lattice(planning_problem, lambda kind, name, role: 0.5 * len(role))

    solution = Solver(network).solve_most(Terms(gpus={"": 3}))

    assert [(arc.tail, arc.head, arc.uses[0].role) for arc in network.arcs] == [
        (0, 1, ("E",)), (1, 3, ("P",)), (3, 7, ("D",))
    ]  # fmt: skip
    [flow] = solution.flows
    assert (flow.options, flow.components) == (("ED", "P", "ED"), (("E",), ("P",), ("D",)))
    assert solution.replicas == {"ED": 2, "P": 1}
    assert solution.capacity == pytest.approx(2.0)
    assert solution.plan_paths()["img"][0].options == {"E": "ED", "P": "P", "D": "ED"}


def test_a_listed_path_may_visit_an_option_twice_and_its_seconds_are_those_of_both_visits():
    planning_problem = in_three({"ED": SolverOption(("E", "D")), "P": SolverOption(("P",))})
    seconds = {("img", 0, "ED"): 2.0, ("img", 0, "P"): 1.0}

    solution = Solver(listed_paths(planning_problem, {"img": [("ED", "P", "ED")]}, seconds)).solve_most(
        Terms(gpus={"": 3})
    )

    assert solution.replicas == {"ED": 2, "P": 1}
    assert solution.capacity == pytest.approx(1.0)
    with pytest.raises(BadRequest, match="path ED > P of request type img does not run D"):
        listed_paths(planning_problem, {"img": [("ED", "P")]}, seconds)
    with pytest.raises(BadRequest, match="runs P before what it waits for"):
        listed_paths(planning_problem, {"img": [("P", "ED")]}, {})


def test_seconds_that_are_no_numbers_are_refused():
    with pytest.raises(BadRequest, match="seconds of option L for request type txt is nan"):
        build_lattice(make_problem(), lambda kind, name, role: math.nan)


def test_too_many_arcs_are_refused_before_memory_is_full():
    components = tuple("abcdefghijklm")
    options = enumerate_options(dict.fromkeys(components, 1.0), {"": Gpu(80.0)})
    planning_problem = PlanningProblem(components, options, {"all": RequestType(components, 1.0)})

    with pytest.raises(BadRequest, match="more than 200000 arcs"):
        build_lattice(planning_problem, lambda kind, name, role: 1.0)
