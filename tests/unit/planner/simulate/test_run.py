"""Whole plans in virtual time against results calculated by hand."""

import pytest

from omnibus.errors import BadRequest
from omnibus.plan import Path
from omnibus_planner.simulate.arrivals import Arrival, TypeRate, even_arrivals, poisson_arrivals
from omnibus_planner.simulate.cluster import AdmissionLimits
from omnibus_planner.simulate.links import Links
from omnibus_planner.simulate.outcome import SimulationOutcome
from omnibus_planner.simulate.run import simulate_plan
from tests.unit.planner.simulate.world import IMAGE, SEEN, STEP, STEPS, TEXT, chain, devices, plan, simulated

ANSWER = STEP * STEPS  # the prompt gives the first token


def option(found: SimulationOutcome, name: str):
    return next(each for each in found.options if each.option == name)


def test_a_request_alone_takes_the_sum_of_its_stages_and_the_first_token_comes_after_the_prompt():
    found = simulate_plan(simulated(chain()), even_arrivals([TypeRate("vl", SEEN, 0.1)], 100.0), 100.0)

    [seen] = found.types
    assert seen.p99["done"] == pytest.approx(IMAGE + ANSWER)
    assert seen.p99["first_token"] == pytest.approx(IMAGE + STEP)
    assert seen.p99["token"] == pytest.approx(STEP)
    assert option(found, "E").busy == pytest.approx(8 * IMAGE / found.seconds)


def test_random_arrivals_wait_as_a_queue_with_fixed_service_times_does():
    rate = 0.5 / IMAGE  # half of what one encoder serves
    found = simulate_plan(
        simulated(chain(thinkers=4)), poisson_arrivals([TypeRate("vl", SEEN, rate)], 6_000.0), 6_000.0
    )

    # M/D/1 (Erlang): half of all do not wait, 1 % wait longer than 3.16 service times.
    assert found.types[0].median["done"] == pytest.approx(IMAGE + ANSWER, rel=0.05)
    assert (found.types[0].p99["done"] - IMAGE - ANSWER) / IMAGE == pytest.approx(3.16, rel=0.15)


def test_the_same_question_has_the_same_answer_and_another_seed_another():
    rates = [TypeRate("vl", SEEN, 2.0), TypeRate("vl", TEXT, 3.0)]

    first, second, other = (
        simulate_plan(simulated(chain()), poisson_arrivals(rates, 60.0, seed), 60.0, seed=seed) for seed in (1, 1, 2)
    )

    assert first == second
    assert first.types != other.types


def test_paths_get_their_shares_and_replicas_equal_parts():
    paths = (Path("L", {"thinker": "L"}, 7.0), Path("L2", {"thinker": "L2"}, 3.0))
    made = plan({"L": 2, "L2": 1}, {TEXT: paths})

    found = simulate_plan(simulated(made), even_arrivals([TypeRate("vl", TEXT, 5.0)], 200.0), 200.0)

    came = {name: option(found, name).load * option(found, name).capacity for name in ("L", "L2")}
    assert came["L"] / came["L2"] == pytest.approx(7 / 3, rel=0.02)
    assert option(found, "L").busy == pytest.approx(5.0 * 0.7 * ANSWER / 2, rel=0.05)


def test_what_breaks_first_is_named_with_the_rate_at_which_it_does():
    rates = [TypeRate("vl", SEEN, 2.0), TypeRate("vl", TEXT, 2.0)]
    found = simulate_plan(simulated(chain()), even_arrivals(rates, 300.0), 300.0)

    assert found.breaks is not None
    assert (found.breaks.option, found.breaks.component) == ("E", "vision")
    assert found.breaks.rate == pytest.approx(2 / IMAGE, rel=0.02)
    assert option(found, "E").load == pytest.approx(2.0 * IMAGE, rel=0.02)


@pytest.mark.parametrize(("factor", "served"), [(0.9, 1.0), (1.5, 1 / 1.5)])
def test_beyond_what_breaks_requests_are_refused_and_below_it_none(factor: float, served: float):
    rate = factor / IMAGE
    found = simulate_plan(simulated(chain()), even_arrivals([TypeRate("vl", SEEN, rate)], 400.0), 400.0)

    refused = sum(each.refused for each in found.types)
    assert found.throughput / found.rate == pytest.approx(served, rel=0.03)
    assert bool(refused) == (factor > 1)
    assert found.carried == pytest.approx(served, abs=0.03)


def test_an_executor_takes_as_many_requests_as_it_has_credits():
    burst = [Arrival(10.0, "vl", SEEN, {}) for _ in range(20)]
    found = simulate_plan(simulated(chain(), AdmissionLimits(credits=8)), burst, 60.0, warm_up=0.0)

    assert found.types[0].refused == 12
    assert found.types[0].p99["done"] == pytest.approx(8 * IMAGE + ANSWER)


def test_images_of_one_request_are_shared_by_the_encoders():
    sizes = {"images": 4.0, "image_tokens": 40.0}
    found = simulate_plan(simulated(chain(encoders=4)), [Arrival(1.0, "vl", SEEN, sizes)], 10.0, warm_up=0.0)

    assert found.types[0].p99["done"] == pytest.approx(IMAGE + ANSWER)


def test_executors_batch_as_their_devices_do():
    batched = devices(slots=4, batch={"base": IMAGE})
    found = simulate_plan(
        simulated(chain(thinkers=4), devices=batched), even_arrivals([TypeRate("vl", SEEN, 1.0)], 60.0), 60.0
    )

    assert option(found, "E").capacity == pytest.approx(4 / IMAGE, rel=0.02)


def test_tensors_that_cross_nodes_take_their_time():
    places = {"E": {"n1": 1}, "L": {"n2": 1}}
    sizes = {("vision", "thinker"): 0.5}
    made = simulated(chain(), places=places, edge_gb=lambda kind, source, target: sizes.get((source, target), 0.0))
    made = made._replace(links=Links(0.25, lambda start, end: 2.0))

    found = simulate_plan(made, even_arrivals([TypeRate("vl", SEEN, 0.1)], 100.0), 100.0)

    assert found.types[0].p99["done"] == pytest.approx(IMAGE + ANSWER + 0.25 + 0.25)


def test_goals_say_which_part_of_the_requests_was_in_time():
    made = simulated(chain())._replace(goals={"vl": {"first_token": IMAGE + STEP + 0.001, "done": 100.0}})
    burst = [Arrival(1.0, "vl", SEEN, {}), Arrival(1.0, "vl", SEEN, {})]

    found = simulate_plan(made, burst, 10.0, warm_up=0.0)

    assert found.types[0].attained == {"first_token": 0.5, "done": 1.0}
    assert found.types[0].met == 0.5


def test_a_request_type_without_a_path_is_an_error_that_names_it():
    made = plan({"E": 1}, {})
    with pytest.raises(BadRequest, match="no path for requests of thinker"):
        simulate_plan(simulated(made), [Arrival(0.0, "vl", TEXT, {})], 1.0)
