"""An engine's step sizes follow from the measured times of its steps."""

from omnibus.executor.step_budget import NO_GOALS, StepGoals
from omnibus_llm.vllm.step_costs import FIRST_STEP_TOKENS, MIN_STEP_TOKENS, StepMeter

GOALS = StepGoals(ttft=2.0, tbt=0.1)


def predict_seconds(decoding: int, tokens: int) -> float:
    """Return an engine's step time: 20 ms, 1 ms for each sequence, and 0.1 ms for each token of a prompt."""
    return 0.02 + 0.001 * decoding + 0.0001 * tokens


def measure_limits(meter: StepMeter, decoding: int, steps: int = 20) -> list[int]:
    """Return the prompt tokens of ``steps`` steps for an endless prompt. In each, ``decoding`` sequences decode."""
    meter.add_step(decoding, 0, predict_seconds(decoding, 0))
    limits = []
    for _ in range(steps):
        limits.append(meter.token_limit(decoding))
        meter.add_step(decoding, limits[-1], predict_seconds(decoding, limits[-1]))
    return limits


def test_steps_grow_in_doubles_to_what_the_goal_allows():
    limits = measure_limits(StepMeter(GOALS, 8192), 10)

    assert limits[:4] == [FIRST_STEP_TOKENS, 128, 256, 512]
    assert 650 <= limits[-1] <= 700  # 0.1 s less 0.02 and 0.01


def test_the_fewer_sequences_decode_the_more_tokens_a_prompt_has():
    meter = StepMeter(GOALS, 8192)
    for decoding in (1, 2, 4, 8, 16, 32, 64):
        measure_limits(meter, decoding)

    limits = [meter.token_limit(decoding) for decoding in (1, 16, 64, 200)]

    assert limits == sorted(limits, reverse=True)
    assert 700 <= limits[0] <= 790
    assert 100 <= limits[2] <= 160
    assert limits[3] == MIN_STEP_TOKENS


def test_steps_without_decoding_sequences_are_bound_by_the_first_token():
    meter = StepMeter(GOALS, 8192)
    for _ in range(12):
        tokens = meter.token_limit(0)
        meter.add_step(0, tokens, predict_seconds(0, tokens))

    assert meter.token_limit(0) == 8192
    assert StepMeter(StepGoals(tbt=0.1), 8192).token_limit(0) == 8192


def test_one_slow_step_changes_nothing_for_long():
    meter = StepMeter(GOALS, 8192)
    before = measure_limits(meter, 10)[-1]

    meter.add_step(10, 0, 5.0)
    meter.add_step(10, before, 7.0)
    after = measure_limits(meter, 10, 4)[-1]

    assert abs(after - before) <= 0.1 * before


def test_no_step_has_more_than_the_engine_takes():
    assert measure_limits(StepMeter(GOALS, 100), 10)[-1] == 100
    assert StepMeter(NO_GOALS, 100).token_limit(3) == 100
    assert StepMeter(GOALS, 8).token_limit(3) == 8
