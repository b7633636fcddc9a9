"""Each row is sampled with its own settings and random numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from omnibus_llm.engine.sampler import Picker, choose_tokens, gumbel_noise
from omnibus_models.contract import TokenSamplingParams

V = 50


def make_logits(seed: int = 0) -> Tensor:
    return torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 2


def make_picker(seed: int = 1, history: tuple[int, ...] = (), **settings: Any) -> Picker:
    return Picker(TokenSamplingParams(max_tokens=100, seed=seed, **settings), V, history)


def draw_tokens(row: Tensor, picker: Picker, count: int = 200) -> list[int]:
    return [choose_tokens(row[None], [picker])[0] for _ in range(count)]


def test_temperature_zero_is_greedy() -> None:
    assert set(draw_tokens(make_logits(), make_picker(temperature=0.0), 5)) == {int(make_logits().argmax())}


def test_the_same_seed_draws_the_same_tokens() -> None:
    assert draw_tokens(make_logits(), make_picker(5, temperature=1.0)) == draw_tokens(
        make_logits(), make_picker(5, temperature=1.0)
    )
    assert draw_tokens(make_logits(), make_picker(5, temperature=1.0)) != draw_tokens(
        make_logits(), make_picker(6, temperature=1.0)
    )


@pytest.mark.parametrize("settings", [{}, {"top_k": 200}, {"top_p": 0.9}, {"min_p": 0.001}], ids=str)
def test_what_is_rounded_otherwise_draws_the_same_token(settings: dict[str, Any]) -> None:
    """Inverting the cumulative distribution changed two to five of these tokens. It follows the order of the logits."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1_500, 1_000, generator=generator)
    rounded_rows = rows + torch.randn(rows.shape, generator=generator) * 1e-5
    one, other = ([make_picker(seed, temperature=1.0, **settings) for seed in range(len(rows))] for _ in range(2))

    tokens, other_tokens = choose_tokens(rows, one), choose_tokens(rounded_rows, other)

    assert sum(token != other for token, other in zip(tokens, other_tokens, strict=True)) <= 1


def test_the_draws_of_tokens_and_of_steps_are_independent() -> None:
    keys = torch.tensor([make_picker(seed).draw_key() for seed in range(300)])
    uniform = torch.exp(-torch.exp(-gumbel_noise(keys, torch.arange(400).expand(300, 400))))

    assert uniform.mean().item() == pytest.approx(0.5, abs=0.005)
    assert uniform.var().item() == pytest.approx(1 / 12, rel=0.02)
    for one, other in ((uniform[:, 1:], uniform[:, :-1]), (uniform[1:], uniform[:-1])):
        between = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
        assert abs(between.item()) < 0.015  # five times what is expected by chance


def test_company_does_not_change_a_row() -> None:
    rows = torch.stack([make_logits(seed) for seed in range(6)])
    settings: list[dict[str, Any]] = [
        {"temperature": 0.8},
        {"temperature": 1.2, "top_p": 0.7},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 0.0},
        {"temperature": 1.0, "repetition_penalty": 1.3},
        {"temperature": 2.0, "top_k": 5, "top_p": 0.5},
    ]
    together = [make_picker(seed, **options) for seed, options in enumerate(settings)]

    batches = [choose_tokens(rows, together) for _ in range(30)]

    for index, params in enumerate(settings):
        assert [batch[index] for batch in batches] == draw_tokens(rows[index], make_picker(index, **params), 30)


def test_a_script_is_followed_whatever_the_model_prefers() -> None:
    scripted_picker = Picker(TokenSamplingParams(max_tokens=100, seed=1, temperature=1.0), V, (), [3, 1, 4])
    sampling_picker = make_picker(2, temperature=1.0)
    rows = torch.stack([make_logits(0), make_logits(1)])

    batches = [choose_tokens(rows, [scripted_picker, sampling_picker]) for _ in range(3)]

    assert [batch[0] for batch in batches] == [3, 1, 4]
    assert [batch[1] for batch in batches] == draw_tokens(rows[1], make_picker(2, temperature=1.0), 3)


def test_a_script_goes_on_where_another_executor_left_it() -> None:
    scripted_picker = Picker(TokenSamplingParams(max_tokens=100, seed=1, temperature=1.0), V, (), [3, 1, 4])

    scripted_picker.resume_after(3)

    assert draw_tokens(make_logits(), scripted_picker, 2) == [1, 4]


def test_top_k_draws_only_the_k_best() -> None:
    best = set(make_logits().topk(4).indices.tolist())

    assert set(draw_tokens(make_logits(), make_picker(temperature=2.0, top_k=4))) == best


def test_top_p_draws_only_the_nucleus() -> None:
    row = torch.full((V,), -20.0)
    row[[3, 4, 5]] = torch.tensor([0.5, 0.3, 0.2]).log()

    assert set(draw_tokens(row, make_picker(temperature=1.0, top_p=0.75))) == {3, 4}
    assert set(draw_tokens(row, make_picker(temperature=1.0, top_p=0.1))) == {3}


def test_frequencies_follow_the_probabilities() -> None:
    row = torch.full((V,), -30.0)
    row[[7, 8, 9]] = torch.tensor([0.6, 0.3, 0.1]).log()

    tokens = draw_tokens(row, make_picker(temperature=1.0), 4000)

    shares = [tokens.count(token) / 4000 for token in (7, 8, 9)]
    assert torch.allclose(torch.tensor(shares), torch.tensor([0.6, 0.3, 0.1]), atol=0.03)


def test_forbidden_ids_are_never_drawn() -> None:
    row = torch.full((V,), -torch.inf)
    row[[1, 2]] = torch.tensor([0.0, -3.0])

    assert set(draw_tokens(row, make_picker(temperature=2.0))) == {1, 2}


def test_a_penalty_weakens_what_was_seen() -> None:
    row = torch.zeros(V)
    row[[10, 11, 12]] = torch.tensor([2.0, 1.9, 1.8])

    assert draw_tokens(row, make_picker(repetition_penalty=1.5), 3) == [10, 11, 12]
    assert draw_tokens(row, make_picker(repetition_penalty=1.5, history=(10, 11)), 1) == [12]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0, "top_p": 5e-324},
        {"temperature": 5e-324},
        {"temperature": 1e-40, "top_k": 3},
        {"temperature": 1e-6, "top_p": 0.5},
        {"temperature": 2.0, "top_p": 1e-9, "top_k": 1},
    ],
    ids=str,
)
def test_what_is_next_to_nothing_leaves_the_best_one(settings: dict[str, Any]) -> None:
    assert set(draw_tokens(make_logits(), make_picker(**settings), 20)) == {int(make_logits().argmax())}


@pytest.mark.parametrize("penalty", [0.01, 10.0])
def test_the_outermost_penalties_leave_numbers(penalty: float) -> None:
    penalty_picker = make_picker(temperature=1.0, repetition_penalty=penalty, history=tuple(range(V)))

    assert all(0 <= token < V for token in draw_tokens(make_logits() * 100, penalty_picker))
