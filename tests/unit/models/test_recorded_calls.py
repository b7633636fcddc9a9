"""Recorded functions: equal to the bit, compared before use, and refused where values decide."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma3Config, MistralConfig

from omnibus_models.recorded_calls import CallShape, RecordedCalls, RecordingSettings, has_windows

Layer = nn.Linear(4, 4)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def apply_layer(factor: int, rows: Tensor) -> Tensor:
    return torch.tanh(Layer(rows)) * factor


def test_a_shape_that_comes_back_is_recorded_compared_and_then_used() -> None:
    calls = RecordedCalls(Layer, apply_layer)

    for number in range(5):
        rows = torch.randn(3, 4)
        assert torch.equal(calls(2, rows), apply_layer(2, rows)), number

    assert (calls.recordings, calls.compared) == (1, 1)


def test_a_recording_is_used_for_its_own_shape_and_fixed_value_only() -> None:
    calls = RecordedCalls(Layer, apply_layer)

    for _ in range(4):
        for fixed, count in ((2, 3), (5, 3), (2, 7)):
            rows = torch.randn(count, 4)
            assert torch.equal(calls(fixed, rows), apply_layer(fixed, rows))

    assert calls.compared == 3


def test_one_recording_serves_all_shapes_that_it_was_compared_for() -> None:
    calls = RecordedCalls(Layer, apply_layer, lambda _, rows: CallShape(None, len(rows)))

    for count in (2, 2, 2, 2, 3, 3, 9, 9):
        rows = torch.randn(count, 4)
        assert torch.equal(calls(1, rows), apply_layer(1, rows))

    assert (calls.recordings, calls.compared) == (1, 2), "its own shape proves nothing"


def test_a_recording_that_keeps_a_size_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    def divide_by_count(_: None, rows: Tensor) -> Tensor:
        return rows / len(rows.tolist() if torch.jit.is_tracing() else rows)

    calls = RecordedCalls(Layer, divide_by_count, lambda _, rows: CallShape(None, len(rows)))

    with caplog.at_level(logging.WARNING):
        for count in (2, 2, 3, 3, 3):
            rows = torch.randn(count, 4)
            assert torch.equal(calls(None, rows), rows / count)

    assert (calls.recordings, calls.compared) == (0, 0)
    assert "gives other values" in caplog.text


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MistralConfig(sliding_window=600), True),
        (MistralConfig(sliding_window=None), False),
        (Gemma3Config(text_config={"sliding_window": 512}), True),
        (None, False),
    ],
)
def test_windows_of_a_configuration_and_those_in_it_are_found(config: Any, expected: bool) -> None:
    module = nn.Linear(4, 4)
    if config is not None:
        module.config = config

    assert has_windows(module) is expected


def test_a_wrong_recording_leaves_nothing_in_tensors_that_the_function_writes() -> None:
    def store_rows(_: None, rows: Tensor, stored: Tensor) -> Tensor:
        stored[: rows.shape[0]] = rows * (2 if rows.shape[0] > 3 else 1)
        return stored.sum()

    calls = RecordedCalls(Layer, store_rows, lambda _, rows, stored: CallShape(None, len(rows)))

    for count in (2, 2, 5, 5):
        rows, stored, expected = torch.randn(count, 4), torch.zeros(8, 4), torch.zeros(8, 4)
        assert torch.equal(calls(None, rows, stored), store_rows(None, rows, expected))
        assert torch.equal(stored, expected)

    assert calls.recordings == 0


@pytest.mark.parametrize(
    "read",
    [
        lambda rows: rows * int(rows.sum() > 0),
        lambda rows: rows[rows > 0],
        lambda rows: rows * len(rows.nonzero()),
        lambda rows: rows * len(torch.where(rows > 0)[0]),
        lambda rows: rows + sum(rows[0].tolist()),
    ],
)
def test_a_function_that_reads_values_is_never_recorded(read: object, caplog: pytest.LogCaptureFixture) -> None:
    calls = RecordedCalls(Layer, lambda _, rows: read(rows))  # type: ignore[operator]

    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            rows = torch.randn(3, 4)
            assert torch.equal(calls(None, rows), read(rows))  # type: ignore[operator]

    assert calls.recordings == 0
    assert "Linear is not recorded: its operations depend on values" in caplog.text


def test_values_that_are_not_numbers_decide_nothing() -> None:
    calls = RecordedCalls(Layer, apply_layer)
    broken = torch.full((3, 4), torch.nan)

    for _ in range(4):
        calls(1, broken)

    assert (calls.recordings, calls.compared) == (1, 0)
    rows = torch.randn(3, 4)
    assert torch.equal(calls(1, rows), apply_layer(1, rows))
    assert calls.compared == 1


def test_several_tensors_come_back_as_the_function_returns_them() -> None:
    calls = RecordedCalls(Layer, lambda _, rows: (Layer(rows), rows + 1))

    for _ in range(4):
        rows = torch.randn(3, 4)
        first, second = calls(None, rows)
        assert torch.equal(first, Layer(rows))
        assert torch.equal(second, rows + 1)

    assert calls.compared == 1


def test_nothing_is_recorded_where_it_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordingSettings, "enabled", False)
    calls = RecordedCalls(Layer, apply_layer)

    for _ in range(4):
        calls(1, torch.randn(3, 4))

    assert calls.recordings == 0
