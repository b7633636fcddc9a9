"""Packed weights of language models on a CPU: equal products, the same parameters, and no second copy."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from omnibus_llm.engine.admission import TOLERANCE, engine_logits, make_prefill, make_prompts
from omnibus_models import packed_weights
from omnibus_models.adapters import AdaptedLinear, AdaptedRows, PassAdapters
from omnibus_models.families.causal_lm import OwnDecoder, find_backbone, find_head
from omnibus_models.packed_weights import BlockedEmbedding, BlockedLinear, OneDnnLinear, pack_weights

#: Largest difference of a product in float32, relative to the largest value.
BOUND = 1e-5


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pack the layers of small models too."""
    monkeypatch.setattr(packed_weights, "_LARGE_WEIGHTS", packed_weights._LEAST_WEIGHTS)
    with torch.inference_mode():
        yield


def make_model(tied: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    """A model with layers large enough to pack, and a vocabulary that no block divides."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=515,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)


def compute_logits(module: Any) -> list[Tensor]:
    decoder = OwnDecoder(module, find_backbone(module), module.lm_head, ())
    return engine_logits(decoder, [make_prefill(decoder, prompt) for prompt in make_prompts()])


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("outputs", [256, 384, 576, 1000])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_blocks_equal_those_of_the_plain_layer(outputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(300, outputs, bias=bias)
    weight, rows = layer.weight.clone(), torch.randn(3, 5, 300)
    expected = layer(rows), layer(rows[0, :1])
    pack_weights(nn.ModuleList([layer]))
    assert type(layer) is BlockedLinear
    assert torch.equal(layer.weight, weight)
    for given, product in zip((layer(rows), layer(rows[0, :1])), expected, strict=True):
        torch.testing.assert_close(given, product, rtol=0, atol=BOUND * float(product.abs().max()))


@pytest.mark.parametrize("tied", [True, False])
def test_the_engine_gives_the_logits_of_plain_weights(tied: bool) -> None:
    module = make_model(tied)
    ids = torch.tensor([[0, 1, 257], [63, 64, 514]])
    expected, embeddings, parameters = compute_logits(module), module.model.embed_tokens(ids), count_parameters(module)
    pack_weights(module)
    assert type(module.lm_head) is type(module.model.layers[0].mlp.up_proj) is BlockedLinear
    assert (type(module.model.embed_tokens) is BlockedEmbedding) is tied
    assert torch.equal(module.model.embed_tokens(ids), embeddings)
    assert count_parameters(module) <= parameters + 64 * 256 * (2 - tied)  # padding of the last block
    for given, logits in zip(compute_logits(module), expected, strict=True):
        torch.testing.assert_close(given, logits, rtol=0, atol=TOLERANCE * max(1.0, float(logits.abs().max())))


@pytest.mark.skipif(not packed_weights._packs_bfloat16(), reason="oneDNN has no bfloat16 on this processor")
def test_bfloat16_is_packed_except_a_shared_head() -> None:
    module = make_model(dtype=torch.bfloat16)
    weight, expected = module.model.layers[0].mlp.up_proj.weight.clone(), compute_logits(module)
    pack_weights(module)
    layer = module.model.layers[0].mlp.up_proj
    assert type(layer) is OneDnnLinear
    assert type(module.lm_head) is nn.Linear
    assert torch.equal(layer.weight, weight)
    for given, logits in zip(compute_logits(module), expected, strict=True):
        torch.testing.assert_close(given, logits, rtol=0, atol=0.02 * float(logits.abs().max()))


def test_heads_found_before_packing_compute_with_packed_weights() -> None:
    module, rows = make_model(), torch.randn(3, 256)
    head = find_head(module)
    expected = head(rows)
    pack_weights(module)
    torch.testing.assert_close(head(rows), expected, rtol=0, atol=BOUND * float(expected.abs().max()))


def test_layers_that_others_read_stay_plain() -> None:
    small, hooked, one, other, half = (
        nn.Linear(size, 512, dtype=dtype)
        for size, dtype in ((16, None), (256, None), (256, None), (256, None), (256, torch.float16))
    )
    hooked.register_forward_hook(lambda *_: None)
    other.weight = one.weight
    layers = nn.ModuleList([small, hooked, one, other, half])
    pack_weights(layers)
    assert {type(layer) for layer in layers} == {nn.Linear}


def test_layers_stay_plain_where_blocks_are_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_model()
    monkeypatch.setattr(packed_weights, "_LARGE_WEIGHTS", module.lm_head.weight.numel())
    pack_weights(module)
    assert type(module.lm_head) is BlockedLinear
    assert type(module.model.layers[0].mlp.up_proj) is nn.Linear


def test_adapters_change_only_their_rows_of_a_packed_layer() -> None:
    torch.manual_seed(0)
    layer, rows, current = nn.Linear(256, 512), torch.randn(2, 1, 256), PassAdapters()
    down, up = torch.randn(4, 256) / 16, torch.randn(512, 4)
    merged = layer(rows) + rows @ down.T @ up.T
    pack_weights(nn.ModuleList([layer]))
    plain = layer(rows)
    adapted = AdaptedLinear(layer, current, 1, 4)
    adapted.set_adapter(0, down, up, 1.0)
    assert torch.equal(adapted(rows), plain)
    current.rows = AdaptedRows(2, torch.tensor([1]), torch.tensor([0]))
    output = adapted(rows)
    assert torch.equal(output[0], plain[0])
    torch.testing.assert_close(output[1], merged[1], rtol=0, atol=BOUND * float(merged.abs().max()))
