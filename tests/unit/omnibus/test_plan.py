"""Plans as data, and the one choice that follows from them."""

import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus import plan as plans
from omnibus.errors import BadRequest, ProtocolError
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan, choose_path, request_point, request_type


def make_paths(*rates: float) -> list[Path]:
    return [Path(f"p{index}", {}, rate) for index, rate in enumerate(rates)]


def make_plan() -> Plan:
    options = {"E": DeploymentOption(("vision",), "encoder", 2, 1), "L": DeploymentOption(("thinker",), "llm")}
    types = {"vision+thinker": (Path("E>L", {"vision": "E", "thinker": "L"}, 7.0),)}
    components = ("vision", "thinker")
    model = ModelPlan("tiny", "/m", components, {"image": "vision"}, options, types, ("Ethan",), 4096)
    return Plan(4, 9, 1000.0, {"m": model})


def test_a_plan_survives_the_store():
    assert plans.decode_plan(plans.encode_plan(make_plan())) == make_plan()


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"epoch":"four"}'])
def test_what_is_no_plan_is_refused(body: bytes):
    with pytest.raises(ProtocolError, match="cannot be read"):
        plans.decode_plan(body)


def test_a_plan_of_another_version_is_refused_by_name():
    body = json.dumps({**json.loads(plans.encode_plan(make_plan())), "v": 2}).encode()

    with pytest.raises(ProtocolError, match="version 2"):
        plans.decode_plan(body)


@pytest.mark.parametrize(("components", "speaks"), [(("thinker",), False), (("thinker", "talker", "vocoder"), True)])
def test_a_model_with_a_talker_speaks(components: tuple[str, ...], speaks: bool):
    assert ModelPlan("f", "", components, {}, {}, {}).has_talker == speaks


def test_a_request_type_is_named_in_the_order_of_the_model():
    components = ("vision", "audio", "thinker", "talker")

    assert request_type(components, frozenset({"talker", "thinker", "vision"})) == "vision+thinker+talker"
    assert request_type(components, frozenset()) == ""


def test_the_interval_is_divided_by_the_rates():
    model_paths = make_paths(70, 30)

    assert [choose_path(model_paths, at).name for at in (0.0, 0.5, 0.6999, 0.7001, 0.9999)] == [
        "p0",
        "p0",
        "p0",
        "p1",
        "p1",
    ]


def test_a_path_without_rate_is_chosen_nowhere():
    model_paths = make_paths(0, 1, 0, 1, 0)

    assert {choose_path(model_paths, at / 1000).name for at in range(1000)} == {"p1", "p3"}
    assert choose_path(model_paths, math.nextafter(1.0, 0.0)).name == "p3"


def test_a_single_path_is_chosen_everywhere():
    assert {choose_path(make_paths(0.01), at / 100).name for at in range(100)} == {"p0"}


@pytest.mark.parametrize("rates", [(), (0.0,), (0.0, 0.0), (-1.0,), (1.0, -1.0), (float("nan"),), (1.0, float("nan"))])
def test_rates_that_sum_to_nothing_are_refused(rates: tuple[float, ...]):
    with pytest.raises(BadRequest, match="no rate"):
        choose_path(make_paths(*rates), 0.5)


RATES = st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(lambda rates: sum(rates) > 1e-3)


@settings(max_examples=100, deadline=None)
@given(RATES, st.floats(0, 1, exclude_max=True))
def test_every_point_has_a_path_with_a_rate(rates: list[float], at: float):
    assert choose_path(make_paths(*rates), at).rate > 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=5).filter(any), st.text(max_size=8), st.integers(0, 99))
def test_shares_are_met_to_a_few_requests(rates: list[int], kind: str, seed: int):
    count = 1000

    counts = Counter(
        choose_path(make_paths(*rates), request_point("g", kind, number, seed)).name for number in range(count)
    )

    for index, rate in enumerate(rates):
        assert abs(counts[f"p{index}"] - count * rate / sum(rates)) < 8  # coin flips would miss by up to 50


def test_the_same_request_falls_on_the_same_point_for_ever():
    # Fixed values, since another build must decide recorded requests alike.
    assert [round(request_point("g", "vision+thinker", number, 0), 12) for number in range(3)] == POINTS


def test_points_differ_by_gateway_kind_and_seed():
    assert (
        len(
            {
                request_point("g", "k", 0, 0),
                request_point("h", "k", 0, 0),
                request_point("g", "l", 0, 0),
                request_point("g", "k", 0, 1),
            }
        )
        == 4
    )


@given(st.integers(0, 10**12))
@settings(deadline=None)
def test_points_stay_in_the_unit_interval(number: int):
    assert 0 <= request_point("gateway", "kind", number, 0) < 1


POINTS = [0.992191893161, 0.610225881911, 0.228259870661]
