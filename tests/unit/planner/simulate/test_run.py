"""Whole plans in virtual time against results calculated by hand."""

import pytest

from omnibus.errors import BadRequest
from omnibus.plan import Path
from omnibus.plan_goals import ModelGoals
from omnibus_planner.simulate.arrivals import Arrival, TypeRate, even_arrivals, poisson_arrivals
from omnibus_planner.simulate.cluster import AdmissionLimits
from omnibus_planner.simulate.links import Links
from omnibus_planner.simulate.outcome import SimulationOutcome
from omnibus_planner.simulate.run import simulate_plan
from tests.unit.planner.simulate.world import (
    IMAGE,
    SEEN,
    STEP,
    STEPS,
    TEXT,
    make_chain,
    make_devices,
    make_plan,
    simulate_model,
)

ANSWER = STEP * STEPS  # the prompt gives the first token


def find_option(outcome: SimulationOutcome, name: str):
    return next(each for each in outcome.options if each.option == name)


def test_a_request_alone_takes_the_sum_of_its_stages_and_the_first_token_comes_after_the_prompt():
    outcome = simulate_plan(simulate_model(make_chain()), even_arrivals([TypeRate("vl", SEEN, 0.1)], 100.0), 100.0)

    [image_type] = outcome.types
    assert image_type.p99["done"] == pytest.approx(IMAGE + ANSWER)
    assert image_type.p99["first_token"] == pytest.approx(IMAGE + STEP)
    assert image_type.p99["token"] == pytest.approx(STEP)
    assert find_option(outcome, "E").busy == pytest.approx(8 * IMAGE / outcome.seconds)


def test_random_arrivals_wait_as_a_queue_with_fixed_service_times_does():
    rate = 0.5 / IMAGE  # half of what one encoder serves
    outcome = simulate_plan(
        simulate_model(make_chain(thinkers=4)), poisson_arrivals([TypeRate("vl", SEEN, rate)], 6_000.0), 6_000.0
    )

    # M/D/1 (Erlang): half of all do not wait, 1 % wait longer than 3.16 service times.
    assert outcome.types[0].median["done"] == pytest.approx(IMAGE + ANSWER, rel=0.05)
    assert (outcome.types[0].p99["done"] - IMAGE - ANSWER) / IMAGE == pytest.approx(3.16, rel=0.15)


def test_the_same_question_has_the_same_answer_and_another_seed_another():
    rates = [TypeRate("vl", SEEN, 2.0), TypeRate("vl", TEXT, 3.0)]

    first, second, other = (
        simulate_plan(simulate_model(make_chain()), poisson_arrivals(rates, 60.0, seed), 60.0, seed=seed)
        for seed in (1, 1, 2)
    )

    assert first == second
    assert first.types != other.types


def test_paths_get_their_shares_and_replicas_equal_parts():
    paths = (Path("L", {"thinker": "L"}, 7.0), Path("L2", {"thinker": "L2"}, 3.0))
    model_plan = make_plan({"L": 2, "L2": 1}, {TEXT: paths})

    outcome = simulate_plan(simulate_model(model_plan), even_arrivals([TypeRate("vl", TEXT, 5.0)], 200.0), 200.0)

    came = {name: find_option(outcome, name).load * find_option(outcome, name).capacity for name in ("L", "L2")}
    assert came["L"] / came["L2"] == pytest.approx(7 / 3, rel=0.02)
    assert find_option(outcome, "L").busy == pytest.approx(5.0 * 0.7 * ANSWER / 2, rel=0.05)


def test_what_breaks_first_is_named_with_the_rate_at_which_it_does():
    rates = [TypeRate("vl", SEEN, 2.0), TypeRate("vl", TEXT, 2.0)]
    outcome = simulate_plan(simulate_model(make_chain()), even_arrivals(rates, 300.0), 300.0)

    assert outcome.breaks is not None
    assert (outcome.breaks.option, outcome.breaks.component) == ("E", "vision")
    assert outcome.breaks.rate == pytest.approx(2 / IMAGE, rel=0.02)
    assert find_option(outcome, "E").load == pytest.approx(2.0 * IMAGE, rel=0.02)


@pytest.mark.parametrize(("factor", "served_share"), [(0.9, 1.0), (1.5, 1 / 1.5)])
def test_beyond_what_breaks_requests_are_refused_and_below_it_none(factor: float, served_share: float):
    rate = factor / IMAGE
    outcome = simulate_plan(simulate_model(make_chain()), even_arrivals([TypeRate("vl", SEEN, rate)], 400.0), 400.0)

    refused_count = sum(each.refused for each in outcome.types)
    assert outcome.throughput / outcome.rate == pytest.approx(served_share, rel=0.03)
    assert bool(refused_count) == (factor > 1)
    assert outcome.carried == pytest.approx(served_share, abs=0.03)


def test_an_executor_takes_as_many_requests_as_it_has_credits():
    burst = [Arrival(10.0, "vl", SEEN, {}) for _ in range(20)]
    outcome = simulate_plan(simulate_model(make_chain(), AdmissionLimits(credits=8)), burst, 60.0, warm_up=0.0)

    assert outcome.types[0].refused == 12
    assert outcome.types[0].p99["done"] == pytest.approx(8 * IMAGE + ANSWER)


def test_an_executor_takes_as_many_requests_as_its_plan_allows_if_that_is_less():
    plan = make_chain()
    for credits in (5, 9):
        bounded = simulate_model(plan.with_credits(dict.fromkeys(plan.options, credits)), AdmissionLimits(credits=8))
        burst = [Arrival(10.0, "vl", SEEN, {}) for _ in range(20)]
        assert simulate_plan(bounded, burst, 60.0, warm_up=0.0).types[0].refused == 20 - min(8, credits)


def test_images_of_one_request_are_shared_by_the_encoders():
    sizes = {"images": 4.0, "image_tokens": 40.0}
    outcome = simulate_plan(
        simulate_model(make_chain(encoders=4)), [Arrival(1.0, "vl", SEEN, sizes)], 10.0, warm_up=0.0
    )

    assert outcome.types[0].p99["done"] == pytest.approx(IMAGE + ANSWER)


def test_executors_batch_as_their_devices_do():
    batch_devices = make_devices(slots=4, batch={"base": IMAGE})
    outcome = simulate_plan(
        simulate_model(make_chain(thinkers=4), devices=batch_devices),
        even_arrivals([TypeRate("vl", SEEN, 1.0)], 60.0),
        60.0,
    )

    assert find_option(outcome, "E").capacity == pytest.approx(4 / IMAGE, rel=0.02)


def test_tensors_that_cross_nodes_take_their_time():
    places = {"E": {"n1": 1}, "L": {"n2": 1}}
    sizes = {("vision", "thinker"): 0.5}
    simulated_plan = simulate_model(
        make_chain(), places=places, edge_gb=lambda kind, source, target: sizes.get((source, target), 0.0)
    )
    simulated_plan = simulated_plan._replace(links=Links(0.25, lambda start, end: 2.0))

    outcome = simulate_plan(simulated_plan, even_arrivals([TypeRate("vl", SEEN, 0.1)], 100.0), 100.0)

    assert outcome.types[0].p99["done"] == pytest.approx(IMAGE + ANSWER + 0.25 + 0.25)


def test_goals_say_which_part_of_the_requests_was_in_time():
    simulated_plan = simulate_model(make_chain())._replace(
        goals={"vl": ModelGoals({"done": 100.0}, {"vision": {"first_token": IMAGE + STEP + 0.001}})}
    )
    burst = [Arrival(1.0, "vl", SEEN, {}), Arrival(1.0, "vl", SEEN, {})]

    outcome = simulate_plan(simulated_plan, burst, 10.0, warm_up=0.0)

    assert outcome.types[0].attained == {"done": 1.0, "first_token": 0.5}
    assert outcome.types[0].met == 0.5


def test_a_request_type_without_a_path_is_an_error_that_names_it():
    model_plan = make_plan({"E": 1}, {})
    with pytest.raises(BadRequest, match="no path for requests of thinker"):
        simulate_plan(simulate_model(model_plan), [Arrival(0.0, "vl", TEXT, {})], 1.0)
