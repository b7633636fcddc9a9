"""Candidates: the gate's verdict on their counts, and plans with them."""

import random
from collections import Counter

import msgspec
import pytest

from omnibus.canary.candidate import (
    Bounds,
    Candidate,
    GateRules,
    OptionChange,
    check_candidate,
    decode_candidate,
    encode_candidate,
    find_control,
    judge_canary,
    judge_shadow,
    overlay_model,
    without_candidate,
)
from omnibus.errors import BadRequest
from omnibus.families import catalog
from omnibus.plan import ModelPlan, Path
from omnibus_planner.declared.declarations_file import build_static_plans
from omnibus_planner.declared.model import DeclaredModel

BOTH = "vision+thinker"


def make_plan() -> ModelPlan:
    declaration = catalog.model_declaration("qwen2_5_vl", "/m")
    return build_static_plans({"m": msgspec.convert(declaration, DeclaredModel)})["m"]


def make_candidate(**fields: object) -> Candidate:
    return Candidate(**{"id": "c", "model": "m", "changes": (OptionChange("E", dtype="bfloat16"),), **fields})  # type: ignore[arg-type]


# The gate


def test_the_gate_waits_until_it_has_seen_enough_and_then_says_green():
    rules = GateRules()

    assert judge_shadow(rules, {}).verdict == "open"
    assert judge_shadow(rules, {"pairs": 20}).verdict == "open"
    assert judge_shadow(rules, {"pairs": 60}).verdict == "green"


@pytest.mark.parametrize(
    ("counts", "expected_reason"),
    [
        ({"pairs": 4, "failed": 3}, "it failed in 3 of 4"),
        ({"pairs": 12, "slower": 12}, "it was slower in 12 of 12"),
        ({"pairs": 10, "differed": 4}, "outputs differed in 4 of 10"),
    ],
)
def test_what_is_bad_more_often_than_by_chance_is_red_and_says_why(counts: dict[str, int], expected_reason: str):
    decision = judge_shadow(GateRules(), counts)

    assert (decision.verdict, decision.reason) == ("red", expected_reason)


def test_a_canary_needs_good_pairs_and_users_whose_requests_went_well():
    good = {"pairs": 60, "served": 60}

    assert judge_canary(GateRules(), good).verdict == "green"
    assert judge_canary(GateRules(), {"pairs": 60}).verdict == "open"
    assert judge_canary(GateRules(), {**good, "served_failed": 10}).verdict == "red"
    assert judge_canary(GateRules(), {**good, "served_slow": 40}).verdict == "red"
    assert judge_canary(GateRules(), {**good, "differed": 20}).reason == "outputs differed in 20 of 60"


def judge_random(rules: GateRules, chance: float, seed: int) -> str:
    """Return the verdict on a candidate, checked after every comparison. Its outputs differ by chance."""
    dice, counts = random.Random(seed), Counter[str]()
    while (state := judge_shadow(rules, counts).verdict) == "open":
        counts["pairs"] += 1
        counts["differed"] += dice.random() < chance
    return state


def test_looking_after_every_comparison_keeps_false_alarms_and_misses_as_rare_as_is_promised():
    rules, runs = GateRules(differed=Bounds(0.05, 0.2)), 1000

    alarms = sum(judge_random(rules, 0.05, seed) == "red" for seed in range(runs))
    misses = sum(judge_random(rules, 0.2, seed) == "green" for seed in range(runs))

    assert alarms <= 1.5 * rules.alarm * runs
    assert misses <= 1.5 * rules.miss * runs


# Plans


def test_a_candidate_in_the_shadow_has_executors_and_a_path_that_serves_nobody():
    model = overlay_model(make_plan(), make_candidate())

    assert model.options["E@canary"].dtype == "bfloat16"
    assert model.option_origin("E@canary") != model.option_origin("E")
    [candidate_path] = [path for path in model.types[BOTH] if path.is_candidate]
    assert (candidate_path.name, candidate_path.rate) == ("E@canary>L", 0)
    assert not any(path.is_candidate for path in model.types["thinker"])
    control = find_control(model.types[BOTH], candidate_path, make_candidate())
    assert control is not None
    assert control.name == "E>L"
    assert without_candidate(model) == make_plan()


def test_a_path_is_compared_with_the_busiest_even_where_it_is_there_for_nobody():
    serving = make_plan()
    idle = [Path("EL", dict.fromkeys(("vision", "thinker"), "EL"), 0.0)]
    serving = msgspec.structs.replace(serving, types={BOTH: (*idle, *serving.types[BOTH])})
    candidate = make_candidate(changes=(), path=("EL",))
    model = overlay_model(serving, candidate)

    [candidate_path] = [path for path in model.types[BOTH] if path.is_candidate]
    control = find_control(model.types[BOTH], candidate_path, candidate)

    assert (candidate_path.name, control and control.name) == ("EL@canary", "E>L")


def test_a_canary_gets_just_its_share():
    model = overlay_model(make_plan(), make_candidate(state="canary", share=0.05))

    paths = model.types[BOTH]
    total = sum(path.rate for path in paths)
    assert sum(path.rate for path in paths if path.is_candidate) / total == pytest.approx(0.05)
    assert without_candidate(model) == make_plan()


def test_a_promoted_candidate_takes_the_place_of_what_it_was_tried_against():
    model = overlay_model(make_plan(), make_candidate(state="promoted"))

    assert model.options["E"].dtype == "bfloat16"
    assert model.options.keys() == make_plan().options.keys()
    assert model.types == make_plan().types


def test_the_next_candidate_is_tried_on_top_of_what_was_promoted():
    first = make_candidate(state="promoted")
    second = first.next_candidate(id="d", changes=(OptionChange("L", checkpoint="/new"),), state="failed")

    model = overlay_model(make_plan(), second)

    assert (model.options["E"].dtype, model.options["L"].checkpoint) == ("bfloat16", "")
    third = second.next_candidate(id="e", changes=(OptionChange("E", batch=4),), state="promoted")
    assert overlay_model(make_plan(), third).options["E"] == msgspec.structs.replace(
        make_plan().options["E"], dtype="bfloat16", batch=4
    )


def test_another_path_is_a_candidate_too():
    candidate = make_candidate(changes=(), path=("EL",))

    model = overlay_model(make_plan(), candidate)
    promoted_model = overlay_model(make_plan(), candidate.enter_state("promoted", "", 0))

    assert [path.name for path in model.types[BOTH] if path.is_candidate] == ["EL@canary"]
    assert [(path.name, path.rate) for path in promoted_model.types[BOTH] if path.rate] == [("EL", 1.0)]


@pytest.mark.parametrize("state", ["failed", "aborted", "expired"])
def test_what_is_over_changes_nothing(state: str):
    assert overlay_model(make_plan(), make_candidate(state=state)) == make_plan()


def test_a_candidate_for_options_that_are_gone_changes_nothing():
    assert overlay_model(make_plan(), make_candidate(changes=(OptionChange("X", batch=2),))) == make_plan()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"changes": (OptionChange("X", dtype="a"),)}, "unknown option 'X'; there is E, EL, L"),
        ({"changes": (OptionChange("E"),)}, "option E would not change"),
        ({"changes": ()}, "either a change of options or a path"),
        ({"changes": (), "path": ("E",)}, "the path E runs no thinker"),
        ({"share": 0.9}, "share must be between 0 and 0.5, not 0.9"),
        ({"mirror": 0.0}, "mirror must be above 0"),
        ({"replicas": 0}, "replicas must be 1 to 64, not 0"),
        ({"changes": (OptionChange("E", engine="x"),)}, "engine must be module:function, not 'x'"),
        ({"rules": GateRules(failed=Bounds(0.5, 0.1))}, "bounds of failed"),
        ({"rules": GateRules(slack=0.5)}, "the slack must be a factor of 1 or more"),
    ],
)
def test_a_candidate_that_makes_no_sense_is_refused(fields: dict[str, object], fault: str):
    with pytest.raises(BadRequest, match=fault.replace("(", r"\(")):
        check_candidate(make_candidate(**fields), make_plan())


def test_a_candidate_is_read_as_it_was_written():
    candidate = make_candidate(state="canary", rules=GateRules(tolerance=0.1), base=(OptionChange("L", batch=2),))

    assert decode_candidate(encode_candidate(candidate)) == candidate
