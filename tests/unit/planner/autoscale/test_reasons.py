"""The reason of a plan that follows the load names the changes."""

from omnibus_planner.autoscale.explanation import describe_load_change
from omnibus_planner.optimize import ModelLoad

SEEN, TEXT = "vision+thinker", "thinker"


def make_load(rate: float, image_share: float = 0.2, tokens: float = 100.0, image: float = 600.0) -> ModelLoad:
    words = {"completion_tokens": tokens}
    return ModelLoad(
        rate, {SEEN: image_share, TEXT: 1 - image_share}, {SEEN: {**words, "image_tokens": image}, TEXT: words}
    )


def test_a_mix_that_has_changed_is_told_by_the_share_that_moved_most():
    assert describe_load_change({"qwen": make_load(12.1, 0.61)}, {"qwen": make_load(12.0, 0.2)}) == (
        "load: qwen 12.1 req/s, 61 % vision+thinker (was 20 %)"
    )


def test_a_rate_that_has_changed_is_told_with_what_it_was():
    assert describe_load_change({"qwen": make_load(12.0)}, {"qwen": make_load(6.0)}) == "load: qwen 12 req/s (was 6)"


def test_longer_requests_are_told_by_their_tokens():
    assert describe_load_change({"qwen": make_load(12.0, tokens=400)}, {"qwen": make_load(12.0)}) == (
        "load: qwen 12 req/s, 400 completion_tokens (were 100)"
    )


def test_tokens_that_follow_from_the_mix_alone_are_not_told():
    assert "tokens" not in describe_load_change({"qwen": make_load(12.0, 0.8)}, {"qwen": make_load(12.0, 0.2)})


def test_tokens_of_a_type_that_was_not_known_before_are_not_compared():
    before = make_load(12.0, 0.8)
    text = ModelLoad(before.rate, before.shares, {TEXT: before.quantities[TEXT]})

    assert "tokens" not in describe_load_change({"qwen": make_load(12.0, 0.8)}, {"qwen": text})


def test_every_model_is_named():
    assert describe_load_change(
        {"b": make_load(1.0), "a": make_load(0.0)}, {"a": make_load(3.0), "b": make_load(1.0)}
    ) == ("load: a 0 req/s (was 3); b 1 req/s")


def test_a_load_that_nothing_is_known_of_is_no_change():
    assert describe_load_change({"a": ModelLoad(0.0)}, {}) == "load: a 0 req/s"
