"""The profile of the simulated cluster in ``examples`` is what its simulation takes, worked out without waiting."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from omnibus import profile
from omnibus.executor.sim import ComponentLoad, TypeDemand, predict_performance, read_profile
from omnibus.profiling.conclusions import contradictions

HERE = Path(__file__).parents[3] / "examples" / "simulated"
SHIPPED = profile.decode_profile((HERE / "profile.json").read_bytes())
TIMES = read_profile(str(HERE / "times.json"))
#: What a profile may say more or less than the simulation takes.
MISS = 0.1
#: Seconds of sound of a code: 480 samples at 24 kHz.
CODE_SECONDS = 0.02
INFLIGHT = 128

ROLES = [(name, work.type, work.components) for name, option in SHIPPED.options.items() for work in option.work]


def loads(kind: str, role: Iterable[str]) -> Mapping[str, ComponentLoad]:
    """What a request of type ``kind`` brings to ``role``; lengths of answers are drawn as executors draw them."""
    sizes = SHIPPED.types[kind].quantities
    prompt, codes = round(sizes["prompt_tokens"]), round(sizes.get("speech_seconds", 0.0) / CODE_SECONDS)
    thinks = "thinker" in role
    every = {
        "vision": ComponentLoad(modality="image"),
        "audio": ComponentLoad(modality="audio"),
        "thinker": ComponentLoad(prompt),
        "talker": ComponentLoad(prompt, None if thinks else codes),
        "vocoder": ComponentLoad(steps=codes),
    }
    return {part: every[part] for part in role}


@pytest.mark.parametrize(
    ("option", "kind", "role"), ROLES, ids=lambda each: each if isinstance(each, str) else "+".join(each)
)
def test_seconds_are_those_of_a_saturated_replica(option: str, kind: str, role: tuple[str, ...]):
    [work] = [each for each in SHIPPED.options[option].work if (each.type, each.components) == (kind, role)]

    expected = predict_performance(TIMES, option, {kind: TypeDemand(1.0, loads(kind, role))}, inflight=INFLIGHT)

    assert work.seconds == pytest.approx(expected.seconds[kind], rel=MISS)


@pytest.mark.parametrize("option", SHIPPED.options)
def test_the_rate_is_that_of_the_mix(option: str):
    parts = {*SHIPPED.options[option].components}
    mix = {
        kind: TypeDemand(each.share, loads(kind, role))
        for kind, each in SHIPPED.types.items()
        if (role := [part for part in each.components if part in parts])
    }

    served = predict_performance(TIMES, option, mix, inflight=INFLIGHT).throughput

    assert SHIPPED.options[option].rate == pytest.approx(served / sum(each.share for each in mix.values()), rel=MISS)


def test_sizes_are_those_of_the_simulation():
    for kind, each in SHIPPED.types.items():
        assert each.quantities["completion_tokens"] == pytest.approx(48, rel=MISS), kind
        if "talker" in each.components:  # three codes for each token but the first
            assert each.quantities["speech_seconds"] == pytest.approx(3 * 47 * CODE_SECONDS, rel=MISS), kind


def test_each_component_has_a_line_and_no_option_contradicts_itself():
    assert {*SHIPPED.lines} == {*SHIPPED.components}
    assert [note for note in contradictions(SHIPPED) if "no line" in note] == []


def test_it_knows_how_much_a_message_brings_and_how_many_codes_a_second_has():
    spoken = [edge for edge in SHIPPED.edges if edge.source in ("thinker", "talker")]
    assert len(spoken) == 4
    for edge in spoken:
        assert edge.bunch == TIMES.default.components[edge.source].chunk
        sizes = SHIPPED.types[edge.type].quantities
        codes, rows = sizes["speech_seconds"] / CODE_SECONDS, sizes["completion_tokens"] - 1
        assert edge.rows == pytest.approx(codes if edge.source == "talker" else rows, rel=0.02)
