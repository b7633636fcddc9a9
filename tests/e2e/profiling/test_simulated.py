"""Profiles of simulated executors are accurate, even after an interruption.

The tests cover errors as well.
"""

import json
from pathlib import Path

import pytest

from omnibus import profile
from omnibus.executor.sim import ComponentLoad, TypeDemand, predict_performance, read_profile
from omnibus.profile import ModelProfile
from tests.e2e.profiling.running import SIM, question_body, run_profile, start_profile, write_simulation, write_speaking

pytestmark = pytest.mark.e2e

BOTH, TEXT = "vision+thinker", "thinker"
#: Share, words of text, tokens of the answer, images.
MIX = [(0.3, 20, 8, 1), (0.3, 60, 16, 1), (0.4, 40, 10, 0)]
#: What is measured may be less than the engine takes by a part of it, and more by what else the machine has to do.
MISS, BUSY = 0.15, 0.5
BRIEF = ("--seconds", "0.4", "--requests", "8", "--most", "16")


#: Option, request type, role.
Case = tuple[str, str, tuple[str, ...]]


def make_workload() -> list[tuple[float, dict]]:
    return [(share, question_body(words, tokens, *[[56, 56]] * pictures)) for share, words, tokens, pictures in MIX]


@pytest.mark.timeout(200)
async def test_what_is_measured_is_what_the_engine_is_told_to_take(tmp_path: Path):
    arguments = [*write_simulation(tmp_path, SIM, *make_workload()), *BRIEF]

    with start_profile(tmp_path, *arguments) as run:
        run.until("E: done")
        run.interrupt()
        code, _ = run.end()
        assert code == 130
        assert "E kept in vl.partial.json: go on with --resume" in run.said
    code, output, messages = run_profile(tmp_path, *arguments, "--resume")

    assert code == 0, messages
    assert "E: done" not in messages
    model_profile = profile.decode_profile((tmp_path / "vl.json").read_bytes())
    assert {kind: round(each.share, 6) for kind, each in model_profile.types.items()} == {BOTH: 0.6, TEXT: 0.4}
    assert model_profile.types[BOTH].quantities["image_tokens"] == 64
    assert model_profile.types[TEXT].quantities == {"prompt_tokens": 40, "completion_tokens": 10}
    part = {
        case: read_seconds(model_profile)[case] / seconds
        for case, seconds in expected_seconds(tmp_path, model_profile).items()
    }
    assert part.keys() == read_seconds(model_profile).keys()
    assert {case: each for case, each in part.items() if not 1 - MISS < each < 1 + BUSY} == {}
    assert all(option.start_s >= 0.1 and option.memory_gb > 0 for option in model_profile.options.values())
    assert {option.engine for option in model_profile.options.values()} == {"omnibus_engines:sim"}
    texts = [
        work for name in ("L", "EL") for work in model_profile.options[name].work if work.components[-1] == "thinker"
    ]
    assert all(0 <= work.first_token < work.latency for work in texts)  # a difference of two times: 0 is none
    assert any(work.first_token > 0 for work in texts)
    assert model_profile.overhead_s > 0
    assert model_profile.lines["thinker"].per
    assert {(edge.source, edge.target, edge.type) for edge in model_profile.edges} == {("vision", "thinker", BOTH)}
    assert 64 * 16 * 4 <= model_profile.edges[0].bytes < 64 * 16 * 4 + 200
    assert (tmp_path / "vl.svg").read_text().startswith("<svg")
    assert not (tmp_path / "vl.partial.json").exists()
    assert "after vision" in output


def read_seconds(model_profile: ModelProfile) -> dict[Case, float]:
    return {
        (name, work.type, work.components): work.seconds
        for name, option in model_profile.options.items()
        for work in option.work
    }


def expected_seconds(here: Path, model_profile: ModelProfile) -> dict[Case, float]:
    """The engine's own profile of the same: single requests of each size, and batches."""
    sim = read_profile(str(here / "sim.json"))
    roles: list[Case] = [("E", BOTH, ("vision",)), ("L", BOTH, ("thinker",)), ("L", TEXT, ("thinker",))]
    roles += [("EL", BOTH, ("vision", "thinker")), ("EL", TEXT, ("thinker",)), ("EL", BOTH, ("thinker",))]
    seconds: dict[Case, float] = {}
    for option, kind, role in roles:
        inflight = max(model_profile.options[option].curve, key=lambda point: point.rate).at_once
        sizes = [each for each in MIX if bool(each[3]) == (kind == BOTH)]
        total = sum(share for share, *_ in sizes)
        seconds[option, kind, role] = sum(
            share
            / total
            * predict_performance(
                sim, option, {"all": TypeDemand(1.0, make_loads(*size, role))}, inflight=inflight
            ).seconds["all"]
            for share, *size in sizes
        )
    return seconds


def make_loads(words: int, tokens: int, pictures: int, role: tuple[str, ...]) -> dict[str, ComponentLoad]:
    every = {"vision": ComponentLoad(modality="image"), "thinker": ComponentLoad(words + 64 * pictures, tokens)}
    return {part: every[part] for part in role}


#: A vocoder that serves half of what one thinker could bring it.
SPEAKING = {
    "time_scale": 0.5,
    "default": {
        "startup": 0.2,
        "components": {
            "vision": {"slots": 4, "batch": {"base": 0.02}, "tokens": {"image": 64}, "width": 16},
            "audio": {"slots": 4, "batch": {"base": 0.02}, "tokens": {"audio": 64}, "width": 16},
            "thinker": {
                "slots": 8, "batch": {"base": 0.01}, "step": {"base": 0.02, "per_item": 0.001},
                "steps": {"mean": 24, "cv": 0.3}, "width": 16, "chunk": 16,
            },
            "talker": {"slots": 16, "step": {"base": 0.004}, "steps": {"per": 2}, "chunk": 48},
            "vocoder": {"slots": 2, "batch": {"base": 0.4}, "samples": 480, "rate": 24000},
        },
    },
}  # fmt: skip
SPOKEN = "thinker+talker+vocoder"


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_language_model_is_measured_where_it_is_the_bottleneck_and_with_the_sizes_of_those_requests(tmp_path: Path):
    audio = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}
    body = {"messages": [{"role": "user", "content": "word" * 20}], **audio}
    arguments = write_speaking(tmp_path, SPEAKING, (1.0, body))

    code, _, messages = run_profile(
        tmp_path,
        *arguments,
        "--option",
        "Th",
        "--option",
        "V",
        "--seconds",
        "0.6",
        "--requests",
        "8",
        "--most",
        "32",
        "--gpu",
        "H100",
    )

    assert code == 0, messages
    assert "starting 2 x V" in messages
    model_profile = profile.decode_profile((tmp_path / "vl.json").read_bytes())
    edges = {edge.target: edge for edge in model_profile.edges}
    assert 0 < edges["talker"].bunch <= 16
    assert 0 < edges["vocoder"].bunch <= 48
    assert edges["vocoder"].rows > edges["talker"].rows > 0  # two codes a token
    [work] = model_profile.options["Th"].work
    demand = {SPOKEN: TypeDemand(1.0, {"thinker": ComponentLoad(20)})}
    prediction = predict_performance(read_profile(str(tmp_path / "sim.json")), "Th", demand, inflight=32).seconds[
        SPOKEN
    ]
    assert 1 - MISS < work.seconds / prediction < 1 + BUSY
    assert 1 - MISS < model_profile.options["Th"].rate * work.seconds < 1 + BUSY
    assert model_profile.types[SPOKEN].quantities["completion_tokens"] == pytest.approx(24, rel=0.1)
    assert model_profile.lines["thinker"].per["completion_tokens"] > 0
    assert model_profile.options["V"].is_measured  # which had several replicas next to Th


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_what_cannot_be_measured_here_is_said_and_batches_are_options_of_their_own(tmp_path: Path):
    slots = {**SIM["default"]["components"]["vision"], "slots": 0}
    by_batch = {**SIM, "default": {"startup": 0.2, "components": {**SIM["default"]["components"], "vision": slots}}}
    arguments = [*write_simulation(tmp_path, by_batch, *make_workload()), *BRIEF]

    code, output, messages = run_profile(tmp_path, *arguments, "--option", "E", "--batch", "1", "--tp", "2", "--json")

    assert code == 0, messages
    model_profile = profile.decode_profile((tmp_path / "vl.json").read_bytes())
    assert {name: option.batch for name, option in model_profile.options.items()} == {"E": 0, "E-b1": 1}
    [whole], [single] = model_profile.options["E"].work, model_profile.options["E-b1"].work
    assert 1 - MISS < single.seconds / (0.5 * 0.05) < 1 + BUSY
    assert whole.seconds < 0.8 * single.seconds
    assert any("tensor parallelism of 2 is not measured" in note for note in json.loads(output)["notes"])
    assert model_profile.lines["vision"].per["image_tokens"] > 0


@pytest.mark.timeout(120)
def test_an_option_that_does_not_start_is_left_to_be_estimated_and_one_that_ends_is_an_error(tmp_path: Path):
    broken_model = {**SIM, "options": {"EL": {"components": {"thinker": {"kind": "talk", "step": None}}}}}
    arguments = [*write_simulation(tmp_path, broken_model, *make_workload()), *BRIEF]

    with start_profile(tmp_path, *arguments, "--option", "E") as run:
        run.until("E: 1 at a time")
        run.executor("E").kill()
        code, _ = run.end()
        assert code == 1
        assert "option E ended while it was measured" in run.said
    code, output, messages = run_profile(tmp_path, *arguments, "--option", "E", "--option", "EL", "--resume", "--json")

    assert code == 0, messages
    assert messages == ""
    model_profile = profile.decode_profile((tmp_path / "vl.json").read_bytes())
    assert model_profile.options["E"].is_measured
    assert not model_profile.options["EL"].is_measured
    [note] = [note for note in json.loads(output)["notes"] if note.startswith("EL")]
    assert "EL is not measured: an executor of option EL does not start" in note
