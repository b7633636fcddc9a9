"""Trials of language models: what they find, what they refuse, and that their results are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

from omnibus.errors import Fatal
from omnibus_llm.engine import admission
from omnibus_llm.engine.admission import ANSWER, MODES, Mode, TrialVerdict
from omnibus_models.families.causal_lm import OwnDecoder, OwnHead, find_backbone
from omnibus_models.miniature import WINDOW, shrink_config


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMNIBUS_CACHE", str(tmp_path))
    return tmp_path / "admission"


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.inference_mode():
        yield


def make_decoder(cls: Any, config: Any) -> OwnDecoder:
    module = admission.build_copy(cls, shrink_config(config))
    return OwnDecoder(module, find_backbone(module), OwnHead(module), ())


def make_prompt(length: int, seed: int) -> Tensor:
    return torch.randint(5, 200, (length,), generator=torch.Generator().manual_seed(seed))


def test_a_copy_is_small_and_its_windows_are_shorter_than_the_prompts():
    small = shrink_config(Gemma2Config())

    assert small.sliding_window == WINDOW < min(admission.PROMPTS)
    assert {*small.layer_types} == {*Gemma2Config().layer_types}
    assert (small.head_dim, small.final_logit_softcapping) == (256, Gemma2Config().final_logit_softcapping)
    assert sum(weights.numel() for weights in Gemma2ForCausalLM(small).parameters()) < 10_000_000


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_gives_the_librarys_logits_beyond_a_window(mode: Mode):
    decoder = make_decoder(Gemma2ForCausalLM, Gemma2Config())
    decoder.batches, decoder.splits_prompts, decoder.takes_masks = mode
    prompts = [make_prompt(3 * WINDOW, 1), make_prompt(2 * WINDOW - 1, 2), make_prompt(2, 3)]

    given = admission.engine_logits(decoder, [admission.make_prefill(decoder, each) for each in prompts])

    for prompt, logits in zip(prompts, given, strict=True):
        expected = admission.generate_logits(decoder.module, prompt)
        assert logits.shape == (ANSWER, expected.shape[1])
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_logits_without_the_soft_cap_would_be_found():
    decoder = make_decoder(Gemma2ForCausalLM, Gemma2Config())
    prompt = make_prompt(9, 1)
    expected = admission.generate_logits(decoder.module, prompt)
    decoder._head = decoder.module.lm_head

    [given] = admission.engine_logits(decoder, [admission.make_prefill(decoder, prompt)])

    assert float((given - expected).abs().max()) > 1e-2


def test_a_model_whose_states_start_anew_with_each_share_gets_whole_prompts():
    verdict = admission.find_verdict(MambaForCausalLM, MambaConfig())

    assert verdict.mode == Mode(batches=True, shares=False)
    assert "logits differ" in verdict.reasons["several at a time, prompts in shares"]


def test_a_model_with_other_logits_is_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    decoder = make_decoder(LlamaForCausalLM, LlamaConfig())
    forward = OwnDecoder.forward
    monkeypatch.setattr(OwnDecoder, "forward", lambda self, rows, at, *rest: forward(self, rows, at + at % 3, *rest))

    with pytest.raises(Fatal, match="LlamaForCausalLM .* logits differ"):
        admission.admit_decoder(decoder)


def test_logits_that_do_not_depend_on_the_prompt_are_refused(monkeypatch: pytest.MonkeyPatch):
    build = admission.build_copy

    def build_constant(cls: Any, config: Any) -> Any:
        module = build(cls, config)
        module.lm_head.weight.zero_()
        return module

    monkeypatch.setattr(admission, "build_copy", build_constant)

    assert admission.find_verdict(LlamaForCausalLM, LlamaConfig()).mode is None


def test_a_verdict_is_kept_for_the_next_start(cache: Path, monkeypatch: pytest.MonkeyPatch):
    first = admission.find_verdict(LlamaForCausalLM, LlamaConfig())
    monkeypatch.setattr(admission, "try_class", lambda *_: pytest.fail("it was tried before"))

    assert (
        first == admission.find_verdict(LlamaForCausalLM, LlamaConfig()) == TrialVerdict(MODES[0]._replace(masks=True))
    )
    assert len([*cache.iterdir()]) == 1


def test_another_configuration_is_another_verdict(cache: Path):
    admission.find_verdict(LlamaForCausalLM, LlamaConfig())
    admission.find_verdict(LlamaForCausalLM, LlamaConfig(attention_bias=True))

    assert len([*cache.iterdir()]) == 2


def test_a_damaged_verdict_is_found_again(cache: Path):
    admission.find_verdict(LlamaForCausalLM, LlamaConfig())
    [path] = cache.iterdir()
    path.write_text("{")

    assert admission.find_verdict(LlamaForCausalLM, LlamaConfig()) == TrialVerdict(MODES[0]._replace(masks=True))
    assert json.loads(path.read_text())["mode"] == [True, True, True]


def test_a_model_without_a_small_copy_runs_as_its_generate_does():
    verdict = admission.find_verdict(LlamaForCausalLM, LlamaConfig(intermediate_size=64, head_dim=100_000))

    assert verdict.mode == MODES[-1]
    assert "no small copy" in verdict.reasons["copy"]
