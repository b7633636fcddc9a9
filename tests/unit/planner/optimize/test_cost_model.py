"""Cost of a request on an option: measured rows first, then Algorithm 3 from components, scaled to request sizes."""

from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus.profile import CostLine, KeyValues, ModelProfile, OptionProfile, TypeProfile
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.cost_model import OptionCosts
from omnibus_planner.optimize.kv_memory import KvMemory
from tests.unit.planner.optimize.testbed import EL, MIXED, SEEN, TEXT, E, L, make_option, make_profile

BOTH = ("vision", "thinker")


def make_costs(model_profile: ModelProfile, gpus: dict[str, GpuType] | None = None) -> OptionCosts:
    memory = KvMemory(model_profile.kv, gpus or {})
    return OptionCosts("q", BOTH, model_profile, model_profile.options, model_profile.lines, memory)


def test_rows_are_taken_as_they_were_measured():
    seconds = make_costs(make_profile()).seconds_per_request()

    assert seconds(SEEN, "EL", BOTH) == 0.7
    assert seconds(SEEN, "EL", ("thinker",)) == seconds(TEXT, "EL", ("thinker",)) == 0.35
    assert seconds(SEEN, "E", ("vision",)) == 0.2


def test_a_rate_of_the_mix_becomes_seconds_by_algorithm_3():
    # E at 10 req/s of all, of which .6 use it: 1/6 s each. EL does 2 req/s where .6/6 + 1/4 = .35 s were needed alone.
    model_profile = make_profile(
        {"E": OptionProfile(("vision",), rate=10.0), "L": OptionProfile(("thinker",), rate=4.0), "EL": OptionProfile(BOTH, rate=2.0)}
    )  # fmt: skip
    seconds = make_costs(model_profile).seconds_per_request()

    assert seconds(SEEN, "E", ("vision",)) == pytest.approx(1 / 6)
    assert seconds(TEXT, "L", ("thinker",)) == pytest.approx(0.25)
    assert seconds(TEXT, "EL", ("thinker",)) == pytest.approx(0.25 * 0.5 / 0.35)
    assert seconds(SEEN, "EL", BOTH) == pytest.approx((1 / 6 + 0.25) * 0.5 / 0.35)


def test_a_role_that_was_not_measured_takes_the_slowdown_of_those_that_were():
    seconds = make_costs(
        make_profile({"E": E, "L": L, "EL": make_option(SEEN, (SEEN, 1.0, SEEN))})
    ).seconds_per_request()

    assert seconds(TEXT, "EL", ("thinker",)) == pytest.approx(0.3 * 1.0 / 0.5)


def test_an_option_of_a_rate_without_its_components_alone_is_named():
    model_profile = make_profile({"L": L, "EL": OptionProfile(BOTH, rate=2.0)})

    with pytest.raises(BadRequest, match="model q: option EL cannot be estimated, because component vision was not measured "
                       "alone: measure it with `omnibus profile`"):  # fmt: skip
        make_costs(model_profile)


def test_an_estimate_needs_its_components_on_the_same_hardware():
    big = OptionProfile(BOTH, gpu="H100", gpus=2)

    with pytest.raises(
        BadRequest, match="option EL2 cannot be estimated, because component vision was not measured alone on 2 x H100"
    ):
        make_costs(make_profile({"E": E, "L": L, "EL2": big}))


def test_a_measured_whole_needs_nothing_alone():
    seconds = make_costs(make_profile({"EL": EL})).seconds_per_request()

    assert seconds(SEEN, "EL", BOTH) == 0.7
    assert seconds(SEEN, "EL", ("vision",)) is None


def test_two_gpus_may_make_a_component_faster_or_not():
    fast = make_option("thinker", ("thinker", 0.2), gpu="H100", gpus=2)

    seconds = make_costs(make_profile({"E": E, "L": L, "L2": fast})).seconds_per_request()

    assert seconds(TEXT, "L", ("thinker",)) == 0.3
    assert seconds(TEXT, "L2", ("thinker",)) == 0.2


SIZED: dict[str, Any] = {
    "types": {
        SEEN: TypeProfile(BOTH, 0.6, {"image_tokens": 500.0, "prompt_tokens": 600.0, "completion_tokens": 100.0}),
        TEXT: TypeProfile(("thinker",), 0.4, {"prompt_tokens": 100.0, "completion_tokens": 100.0}),
    },
    "lines": {"vision": CostLine(0.1, {"image_tokens": 2e-4}), "thinker": CostLine(0.1, {"completion_tokens": 2e-3})},
}


def test_seconds_grow_with_what_requests_ask_for():
    seconds = make_costs(make_profile(**SIZED)).seconds_per_request(
        {SEEN: {"image_tokens": 1500.0}, TEXT: {"completion_tokens": 200.0}}
    )

    assert seconds(SEEN, "E", ("vision",)) == pytest.approx(0.2 * 0.4 / 0.2)
    assert seconds(SEEN, "L", ("thinker",)) == pytest.approx(0.3)
    assert seconds(TEXT, "L", ("thinker",)) == pytest.approx(0.3 * 0.5 / 0.3)
    assert seconds(SEEN, "EL", BOTH) == pytest.approx(0.7 * (0.4 + 0.3) / (0.2 + 0.3))


def test_without_lines_sizes_do_not_matter():
    seconds = make_costs(make_profile(types=SIZED["types"])).seconds_per_request({SEEN: {"image_tokens": 1500.0}})

    assert seconds(SEEN, "E", ("vision",)) == 0.2


def test_components_without_a_line_do_not_grow():
    model_profile = make_profile(types=SIZED["types"], lines={"vision": SIZED["lines"]["vision"]})
    seconds = make_costs(model_profile).seconds_per_request({SEEN: {"image_tokens": 1500.0}})

    assert seconds(SEEN, "EL", BOTH) == pytest.approx(0.7 * (0.4 + 0.3) / (0.2 + 0.3))
    assert seconds(SEEN, "L", ("thinker",)) == 0.3


def test_a_request_type_that_nobody_measured_costs_what_its_components_do():
    model_profile = make_profile(
        {"E": E, "L": make_option("thinker", ("thinker", 0.3, SEEN)), "EL": EL}, types={SEEN: MIXED[SEEN]}
    )
    seconds = make_costs(model_profile).seconds_per_request()

    assert seconds(TEXT, "L", ("thinker",)) == pytest.approx(0.3)
    assert seconds(TEXT, "EL", ("thinker",)) == 0.35


def test_memory_for_keys_and_values_bounds_what_a_replica_serves():
    # .9 * (80 - 20) GB for 200 tokens of .01 GB that are held for 10 s: 2.7 req/s, not 1 / .3.
    llm = make_option("thinker", ("thinker", 0.3, "", 10.0), gpu="H100", weights_gb=20.0)
    model_profile = make_profile({"E": E, "L": llm}, types=SIZED["types"], kv=KeyValues("thinker", 0.01, 80.0))

    seconds = make_costs(model_profile).seconds_per_request()

    assert seconds(TEXT, "L", ("thinker",)) == pytest.approx(1 / 2.7)
    assert seconds(SEEN, "E", ("vision",)) == 0.2


def test_the_memory_of_the_gpu_type_counts_when_the_profile_does_not_say_it():
    llm = make_option("thinker", ("thinker", 0.3, "", 10.0), gpu="H100", weights_gb=20.0)
    model_profile = make_profile({"E": E, "L": llm}, types=SIZED["types"], kv=KeyValues("thinker", 0.01, 0.0))

    assert make_costs(model_profile).seconds_per_request()(TEXT, "L", ("thinker",)) == 0.3
    assert make_costs(model_profile, {"H100": GpuType(1, 80.0)}).seconds_per_request()(
        TEXT, "L", ("thinker",)
    ) == pytest.approx(1 / 2.7)


def test_work_of_an_unknown_request_type_is_named():
    with pytest.raises(BadRequest, match="model q: its profile measures work of audio, which are no request types"):
        make_costs(make_profile({"E": E, "L": make_option("thinker", ("thinker", 0.3, "audio"))}))
