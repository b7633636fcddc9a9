"""Devices derived from profiles take the profiles' times."""

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.profile import ModelProfile
from omnibus_planner.simulate.arrivals import Arrival, TypeRate, poisson_arrivals
from omnibus_planner.simulate.calibrate import calibrate_devices
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.run import SimulatedPlan, simulate_plan
from omnibus_planner.simulate.saturate import RoleRate, saturated_rate
from omnibus_planner.simulate.streams import StreamSizes, measure_streams
from tests.unit.planner.optimize import testbed
from tests.unit.planner.simulate.omni import (
    HEARD,
    OPTIONS,
    SEEN,
    SPOKEN,
    TEXT,
    TYPES,
    engine_times,
    make_omni_model,
    make_omni_plan,
    measured_profile,
    true_devices,
)

MADE = make_omni_model()


def calibrate_model(profile, simulated_model=MADE):
    return calibrate_devices(
        profile, simulated_model.components, simulated_model.kinds, simulated_model.encoders, profile.options
    )


def test_full_replicas_serve_what_the_profile_measured_for_each_option():
    profile = measured_profile()
    devices = calibrate_model(profile)

    for name, option in profile.options.items():
        measured_seconds = simulated_seconds = 0.0
        for kind, about in TYPES.items():
            role = frozenset(OPTIONS[name]) & frozenset(about.components)
            rows = [work for work in option.work if work.type == kind and frozenset(work.components) == role]
            if rows:
                measured_seconds += about.share * rows[0].seconds
                simulated_seconds += about.share / saturated_rate(
                    devices, name, [RoleRate(role, 1.0, about.quantities)]
                )
        assert simulated_seconds == pytest.approx(measured_seconds, rel=0.05), name


def test_one_request_alone_takes_its_latency():
    profile = measured_profile()
    devices = calibrate_model(profile)

    thinker = devices.times.default.components["thinker"]
    [row] = [work for work in profile.options["Th"].work if work.type == "thinker"]
    alone = thinker.step.seconds(1, 0) * 48 + thinker.batch.seconds(1, 68)
    assert alone == pytest.approx(row.latency, rel=0.1)


def test_first_tokens_come_when_those_of_the_engines_do():
    """Under load a prompt waits for the running step; this covers an encoder's path and a text path."""
    profile = measured_profile()
    rates = [TypeRate("omni", kind, 4.0, TYPES[kind].quantities) for kind in (SEEN, TEXT)]
    plan = make_omni_plan({"EV": 3, "Th": 2}, {SEEN: {"vision": "EV", "thinker": "Th"}, TEXT: {"thinker": "Th"}})

    engines, promised_outcome = (
        simulate_plan(SimulatedPlan({"omni": SimulatedModel(plan, devices)}), poisson_arrivals(rates, 120.0), 120.0)
        for devices in (true_devices(), calibrate_model(profile))
    )

    for engine, each in zip(engines.types, promised_outcome.types, strict=True):
        for figure in ("first_token", "token", "done"):
            assert each.median[figure] == pytest.approx(engine.median[figure], rel=0.1), (each.kind, figure)


def test_what_no_component_takes_is_before_all_of_a_request():
    profile = measured_profile()
    plan = make_omni_plan({"Th": 1}, {TEXT: {"thinker": "Th"}})
    one = [Arrival(1.0, "omni", TEXT, TYPES[TEXT].quantities)]

    plain, later = (
        simulate_plan(
            SimulatedPlan({"omni": SimulatedModel(plan, calibrate_model(each))}), one, 10.0, warm_up=0.0
        ).types[0]
        for each in (profile, msgspec.structs.replace(profile, overhead_s=0.25))
    )

    for figure, longer in {"first_token": 0.25, "token": 0.0, "done": 0.25}.items():
        assert later.median[figure] - plain.median[figure] == pytest.approx(longer, abs=1e-9), figure


def test_what_running_together_costs_is_a_factor_of_the_option():
    once, twice = (
        calibrate_model(measured_profile(engine_times(options={"M": {"alpha": alpha}}))).times.options
        for alpha in (1.25, 2.5)
    )

    assert once["Th"].alpha == pytest.approx(1.0, abs=0.06)
    steps = [each["M"].alpha * each["M"].components["thinker"].step.seconds(8, 0) for each in (once, twice)]
    assert steps[0] > 1.1 * once["Th"].components["thinker"].step.seconds(8, 0)
    assert steps[1] / steps[0] == pytest.approx(2.0, rel=0.05)


def test_an_option_that_nobody_measured_is_as_slow_as_the_slowest_part_of_it():
    options = {"E": testbed.E, "L": testbed.L, "EL": testbed.make_option("vision+thinker", gpu="H100")}
    plain_model = testbed.make_model()

    devices = calibrate_model(testbed.make_profile(options), plain_model)

    assert devices.times.options["EL"].alpha == 1.0


def test_a_component_without_seconds_is_an_error_that_names_it():
    options = {"E": testbed.make_option("vision", gpu="H100"), "L": testbed.L}
    with pytest.raises(BadRequest, match="component vision cannot be simulated"):
        calibrate_model(testbed.make_profile(options), testbed.make_model())


def test_devices_of_the_same_profile_are_calibrated_once():
    profile = measured_profile()
    profile, again = (msgspec.json.decode(msgspec.json.encode(profile), type=ModelProfile) for _ in range(2))

    assert calibrate_model(again) is calibrate_model(profile)
    renamed_profile = msgspec.structs.replace(profile, model="other")
    assert calibrate_model(renamed_profile) is not calibrate_model(profile)


def test_messages_and_codes_are_as_they_were_measured_and_usual_ones_where_nobody_did():
    profile = measured_profile()

    assert measure_streams(profile, MADE.kinds) == StreamSizes(32, 32, pytest.approx(50.0))
    assert measure_streams(msgspec.structs.replace(profile, edges=()), MADE.kinds) == StreamSizes(8, 12, 25.0)


def test_spoken_answers_take_as_long_as_those_of_the_engines():
    """A talker waits for the message with the first tokens: half a second of answers of two and a half."""
    profile = measured_profile()
    rates = [TypeRate("omni", kind, 2.0, TYPES[kind].quantities) for kind in (HEARD, SPOKEN)]
    chain = {"thinker": "Th", "talker": "Ta", "vocoder": "V"}
    plan = make_omni_plan({"EA": 1, "Th": 1, "Ta": 1, "V": 1}, {HEARD: {"audio": "EA", **chain}, SPOKEN: chain})

    engines, promised_outcome = (
        simulate_plan(SimulatedPlan({"omni": SimulatedModel(plan, devices)}), poisson_arrivals(rates, 100.0), 100.0)
        for devices in (true_devices(), calibrate_model(profile))
    )

    for engine, each in zip(engines.types, promised_outcome.types, strict=True):
        for figure in ("first_audio", "done"):
            assert each.median[figure] == pytest.approx(engine.median[figure], rel=0.05), (each.kind, figure)
            assert each.p99[figure] == pytest.approx(engine.p99[figure], rel=0.1), (each.kind, figure)
