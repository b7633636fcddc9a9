"""Reading profiles: complete or rejected with the location of the fault, and the meaning of their numbers."""

import json
from pathlib import Path
from statistics import fmean, stdev

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.executor.sim import decode_profile, read_profile
from omnibus.executor.sim import profile as profiles
from omnibus.executor.sim.device import Device
from omnibus.executor.sim.distributions import Curve, Draw, SizeDistribution
from omnibus.executor.sim.engine import KINDS, lane_of
from omnibus.executor.sim.profile import SimComponent, kind_of


def read_example() -> bytes:
    """Return the profile from the module's docstring."""
    documentation = profiles.__doc__ or ""
    document, _ = json.JSONDecoder().raw_decode(documentation[documentation.index("{") :])
    return json.dumps(document).encode()


def encode_faulty(**component: object) -> bytes:
    return json.dumps({"options": {"E": {"components": {"vision": component}}}}).encode()


# Reading


def test_the_documented_profile_has_a_lane_for_each_of_its_components():
    read_back = decode_profile(read_example())

    for name in ("EL", "L", "anything else"):
        option = read_back.find_option(name)
        for component in option.components:
            kind = kind_of(component, option.find_component(component))
            assert lane_of(Device(), option, component, kind, 16).slots > 0
    assert {kind_of(name, part) for name, part in read_back.default.components.items()} == {
        "encode", "think", "talk", "vocode", "any",
    }  # fmt: skip


def test_every_field_is_documented():
    documentation = profiles.__doc__ or ""
    fields = [
        field.name
        for kind in (SimComponent, profiles._OptionFields, profiles._File)
        for field in msgspec.structs.fields(kind)
    ]

    assert [name for name in fields if f"`{name}`" not in documentation] == []


def test_an_option_takes_from_the_default_what_it_does_not_say():
    option = decode_profile(read_example()).find_option("EL")

    assert option.alpha == 1.15
    assert option.startup == 30
    assert option.find_component("thinker").slots == 24
    assert option.find_component("thinker").share == 2048
    assert option.find_component("vision") == decode_profile(read_example()).default.find_component("vision")


def test_an_option_is_found_by_model_and_name_then_by_name_then_by_default():
    example_profile = decode_profile(read_example())

    assert example_profile.find_option("L", "other-model").startup == 60
    assert example_profile.find_option("L", "this-model") is example_profile.default
    assert example_profile.find_option("EL", "other-model") is example_profile.options["EL"]


def test_an_option_may_bring_components_that_the_default_lacks():
    example_profile = decode_profile(encode_faulty(batch={"base": 1.0}, tokens={"image": 3}))

    assert example_profile.find_option("E").find_component("vision").batch == Curve(base=1.0)
    with pytest.raises(BadRequest, match="default has no component 'vision'; there is none"):
        example_profile.find_option("L").find_component("vision")


def test_a_file_is_read_and_named_in_what_is_said_of_it(tmp_path: Path):
    path = tmp_path / "cell.json"
    path.write_bytes(read_example())
    assert read_profile(str(path)).time_scale == 0.1

    path.write_bytes(b"{")
    with pytest.raises(BadRequest, match=str(path)):
        read_profile(str(path))


@pytest.mark.parametrize(("path", "fault"), [("", "set OMNIBUS_EXECUTOR_PROFILE"), ("/nowhere.json", "'/nowhere.json' cannot be read"), ("/", "cannot be read")])  # fmt: skip
def test_a_file_that_cannot_be_read_is_a_bad_request(path: str, fault: str):
    with pytest.raises(BadRequest, match=fault):
        read_profile(path)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"nonsense", "malformed"),
        (b'{"default": {"components": {"a": "\xff"}}}', "the profile: "),
        (b"[]", "Expected `object`"),
        (b'{"time_scale": 0}', "time_scale"),
        (b'{"time_scale": "fast"}', "time_scale"),
        (b'{"jitter": 1}', "jitter"),
        (b'{"speed": 2}', "speed"),
        (b'{"default": {"startup": -1}}', "startup"),
        (b'{"options": {"E": {"alpha": 0}}}', "alpha"),
        (b'{"options": {"E": {"parts": {}}}}', "parts"),
        (b'{"default": {"components": {"vision": {"slots": 1.5}}}}', "default, component vision: .*slots"),
        (encode_faulty(slots=-1), "option E, component vision: .*slots"),
        (encode_faulty(kind="dream"), "option E, component vision: .*kind"),
        (encode_faulty(batch={}), "option E, component vision: a batch must take some time"),
        (encode_faulty(batch={"points": [[1, 0]]}), "must take some time"),
        (encode_faulty(batch={"points": [[4, 1], [2, 1]]}), "from small to large"),
        (encode_faulty(batch={"points": [[2, 1], [2, 2]]}), "from small to large"),
        (encode_faulty(batch={"points": [[0, 1]]}), "points"),
        (encode_faulty(batch={"base": -1}), "base"),
        (encode_faulty(batch={"base": 1e9}), "base"),
        (encode_faulty(step={"linear": 1}), "linear"),
        (encode_faulty(steps={"mean": -1}), "steps"),
        (encode_faulty(steps="many"), "steps"),
        (encode_faulty(tokens=5), "tokens"),
        (encode_faulty(tokens={"image": {"average": 5}}), "average"),
        (encode_faulty(dtype="bfloat16"), "dtype"),
        (encode_faulty(outputs={"y": {"shape": [0]}}), "shape"),
        (encode_faulty(outputs={"y": {"dtype": "object"}}), "dtype"),
    ],
)
def test_a_profile_with_a_fault_is_refused_with_its_place(body: bytes, fault: str):
    with pytest.raises(BadRequest, match=fault):
        decode_profile(body)


@pytest.mark.parametrize(
    ("kind", "component", "lack"),
    [
        ("encode", {"tokens": {"image": 1}}, "`batch`"),
        ("encode", {"batch": {"base": 1}}, "`tokens`"),
        ("think", {"batch": {"base": 1}}, "`step`"),
        ("think", {"step": {"base": 1}}, "`batch`"),
        ("prefill", {}, "`batch`"),
        ("decode", {"batch": {"base": 1}}, "`step`"),
        ("talk", {}, "`step`"),
        ("vocode", {"step": {"base": 1}}, "`batch`"),
        ("any", {"outputs": {"y": {}}}, "`batch` or `step`"),
        ("any", {"batch": {"base": 1}}, "`outputs`"),
    ],
)
def test_what_a_kind_cannot_do_without_is_named(kind: str, component: dict, lack: str):
    option = decode_profile(encode_faulty(**component)).find_option("E")

    with pytest.raises(BadRequest, match=f"option E, component vision of kind {kind}: it needs {lack}"):
        lane_of(Device(), option, "vision", kind, 16)


@pytest.mark.parametrize(
    ("name", "explicit_kind", "family", "kind"),
    [
        ("vision", "", "qwen2_5_vl", "encode"),
        ("talker", "", "qwen2_5_omni", "talk"),
        ("thinker", "", "", "think"),
        ("thinker", "decode", "qwen2_5_omni", "decode"),
        ("vision", "", "nobody-knows", "any"),
        ("denoiser", "", "", "any"),
    ],
)
def test_a_kind_is_told_or_the_familys_or_any(name: str, explicit_kind: str, family: str, kind: str):
    assert kind_of(name, SimComponent(kind=explicit_kind), family) == kind
    assert kind in KINDS


# Curves


def test_a_measured_curve_is_straight_between_its_points():
    curve = Curve(points=((2, 1.0), (4, 2.0), (8, 3.0)))

    assert [curve.seconds(size, 0) for size in (1, 2, 3, 4, 6, 8, 12)] == [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0]


def test_beyond_its_last_point_a_curve_never_falls():
    assert Curve(points=((1, 3.0), (2, 1.0))).seconds(4, 0) == 1.0
    assert Curve(points=((2, 1.0),)).seconds(6, 0) == 3.0


def test_terms_of_a_curve_add_up():
    curve = Curve(points=((1, 1.0), (3, 2.0)), base=0.5, per_item=0.1, per_token=0.01)

    assert curve.seconds(2, 100) == pytest.approx(1.5 + 0.5 + 0.2 + 1.0)


def test_tokens_below_saturation_cost_nothing_more():
    curve = Curve(base=1.0, per_token=0.01, saturation=100)

    assert [curve.seconds(1, tokens) for tokens in (0, 50, 100, 200)] == [2.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("curve", [Curve(base=1.0, per_item=0.5, per_token=0.01), Curve(points=((1, 1.0), (4, 2.0)), per_token=0.01, saturation=500)])  # fmt: skip
def test_parts_of_a_batch_are_its_seconds_and_follow_the_tokens(curve: Curve):
    parts = curve.split_seconds([10, 10, 210])

    assert sum(parts) == pytest.approx(curve.seconds(3, 230))
    assert parts[0] == parts[1]
    assert parts[2] - parts[0] == pytest.approx(200 * 0.01)


# Chance


def test_the_same_parts_draw_the_same_numbers():
    first, again, other = Draw(1, "thinker", 7), Draw(1, "thinker", 7), Draw(1, "thinker", 8)

    numbers = [first.uniform() for _ in range(5)]

    assert numbers == [again.uniform() for _ in range(5)]
    assert numbers != [other.uniform() for _ in range(5)]
    assert len(set(numbers)) == 5


def test_draws_of_many_jobs_fill_the_unit_evenly():
    samples = sorted(Draw(0, seed).uniform() for seed in range(1000))

    assert 0 < samples[0] < samples[-1] < 1
    assert max(abs(value - at / 1000) for at, value in enumerate(samples)) < 0.06
    assert {Draw(seed).integer_below(4) for seed in range(100)} == {0, 1, 2, 3}


def test_a_size_has_the_mean_and_the_variation_that_it_says():
    size = SizeDistribution(mean=200, cv=0.5)
    samples = [size.draw_size(Draw(0, seed)) for seed in range(4000)]

    assert fmean(samples) == pytest.approx(200, rel=0.05)
    assert stdev(samples) / fmean(samples) == pytest.approx(0.5, rel=0.1)


def test_jitter_has_mean_one_and_stays_within_its_bounds():
    samples = [Draw(0, seed).jitter_factor(0.2) for seed in range(2000)]

    assert fmean(samples) == pytest.approx(1.0, rel=0.01)
    assert 0.8 < min(samples) < 0.82
    assert 1.18 < max(samples) < 1.2
    assert Draw(0).jitter_factor(0.0) == 1.0


@pytest.mark.parametrize(
    ("size", "amount", "expected_size"),
    [(SizeDistribution(mean=12), 0, 12), (SizeDistribution(per=1.5), 10, 15), (SizeDistribution(mean=5, per=2), 3, 11), (SizeDistribution(), 0, 1), (SizeDistribution(mean=9, most=4), 0, 4)],
)  # fmt: skip
def test_a_size_without_variation_is_what_it_says(size: SizeDistribution, amount: float, expected_size: int):
    assert size.draw_size(Draw("any"), amount) == expected_size
