"""The example profile of the simulated cluster matches its simulation. It is computed without waiting."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import NormalDist

import pytest

from omnibus import profile
from omnibus.executor.sim import ComponentLoad, TypeDemand, predict_performance, read_profile
from omnibus.profiling.conclusions import contradictions

HERE = Path(__file__).parents[3] / "examples" / "simulated"
SHIPPED = profile.decode_profile((HERE / "profile.json").read_bytes())
TIMES = read_profile(str(HERE / "times.json"))
#: Tolerance between the profile and the simulation.
MISS = 0.1
#: Seconds of audio of a code: 480 samples at 24 kHz.
CODE_SECONDS = 0.02
INFLIGHT = 128
#: Number of answer lengths where no thinker draws them. If all talkers' sequences ended at once, they would fill the
#: batches of their vocoder unrealistically.
LENGTHS = 16

ROLES = [(name, work.type, work.components) for name, option in SHIPPED.options.items() for work in option.work]


def make_loads(kind: str, role: Iterable[str], factor: float = 1.0) -> Mapping[str, ComponentLoad]:
    """Return a request's load on ``role``, with ``factor`` times the mean codes."""
    sizes = SHIPPED.types[kind].quantities
    prompt, codes = round(sizes["prompt_tokens"]), round(factor * sizes.get("speech_seconds", 0.0) / CODE_SECONDS)
    thinks = "thinker" in role
    every = {
        "vision": ComponentLoad(modality="image"),
        "audio": ComponentLoad(modality="audio"),
        "thinker": ComponentLoad(prompt),
        "talker": ComponentLoad(prompt, None if thinks else codes),
        "vocoder": ComponentLoad(steps=codes),
    }
    return {part: every[part] for part in role}


def code_factors() -> list[float]:
    """Return answer lengths relative to their mean, shuffled, as executors draw them. They are equally likely."""
    steps = TIMES.default.components["thinker"].steps
    variance = math.log1p(steps.cv**2)
    places = ((0.5 + number) / LENGTHS for number in range(LENGTHS))
    factors = [math.exp(math.sqrt(variance) * NormalDist().inv_cdf(place) - variance / 2) for place in places]
    return [factors[number * 7 % LENGTHS] for number in range(LENGTHS)]


def yield_demands(kind: str, role: tuple[str, ...], share: float = 1.0) -> Iterator[tuple[str, TypeDemand]]:
    """Yield requests of type ``kind``; executors with a thinker draw the lengths of answers, others receive them."""
    speaks = {"talker", "vocoder"} & {*role}
    if "thinker" in role or not speaks:
        yield kind, TypeDemand(share, make_loads(kind, role))
        return
    for number, factor in enumerate(code_factors()):
        yield f"{kind} {number}", TypeDemand(share / LENGTHS, make_loads(kind, role, factor))


@pytest.mark.parametrize(
    ("option", "kind", "role"), ROLES, ids=lambda each: each if isinstance(each, str) else "+".join(each)
)
def test_seconds_are_those_of_a_saturated_replica(option: str, kind: str, role: tuple[str, ...]):
    [work] = [each for each in SHIPPED.options[option].work if (each.type, each.components) == (kind, role)]

    predicted_seconds = predict_performance(TIMES, option, dict(yield_demands(kind, role)), inflight=INFLIGHT).seconds

    assert work.seconds == pytest.approx(sum(predicted_seconds.values()) / len(predicted_seconds), rel=MISS)


@pytest.mark.parametrize("option", SHIPPED.options)
def test_the_rate_is_that_of_the_mix(option: str):
    parts = {*SHIPPED.options[option].components}
    roles = {kind: tuple(part for part in each.components if part in parts) for kind, each in SHIPPED.types.items()}
    shares = {kind: SHIPPED.types[kind].share for kind, role in roles.items() if role}
    mix = dict(each for kind, share in shares.items() for each in yield_demands(kind, roles[kind], share))

    request_throughput = predict_performance(TIMES, option, mix, inflight=INFLIGHT).throughput

    assert SHIPPED.options[option].rate == pytest.approx(request_throughput / sum(shares.values()), rel=MISS)


def test_sizes_are_those_of_the_simulation():
    for kind, each in SHIPPED.types.items():
        assert each.quantities["completion_tokens"] == pytest.approx(48, rel=MISS), kind
        if "talker" in each.components:  # three codes for each token but the first
            assert each.quantities["speech_seconds"] == pytest.approx(3 * 47 * CODE_SECONDS, rel=MISS), kind


def test_each_component_has_a_line_and_no_option_contradicts_itself():
    assert {*SHIPPED.lines} == {*SHIPPED.components}
    assert [note for note in contradictions(SHIPPED) if "no line" in note] == []


def test_it_knows_how_much_a_message_brings_and_how_many_codes_a_second_has():
    speech_edges = [edge for edge in SHIPPED.edges if edge.source in ("thinker", "talker")]
    assert len(speech_edges) == 4
    for edge in speech_edges:
        assert edge.bunch == TIMES.default.components[edge.source].chunk
        sizes = SHIPPED.types[edge.type].quantities
        codes, rows = sizes["speech_seconds"] / CODE_SECONDS, sizes["completion_tokens"] - 1
        assert edge.rows == pytest.approx(codes if edge.source == "talker" else rows, rel=0.02)
