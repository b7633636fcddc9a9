"""Attention kernels that an executor's process may use."""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.integrations import sdpa_attention

from omnibus_models import tiny
from omnibus_models.attention import avoid_planned_kernels
from omnibus_models.families import load_family


@pytest.fixture(autouse=True)
def restore_kernels() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(("device", "is_allowed"), [("cuda", False), ("cuda:1", False), ("cpu", True)])
def test_no_kernel_that_plans_for_each_length_is_used_on_a_gpu(device, is_allowed):
    avoid_planned_kernels(device)

    assert torch.backends.cuda.cudnn_sdp_enabled() is is_allowed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masked_attention_on_a_cpu_copies_no_keys_and_changes_no_result(tmp_path, monkeypatch, dtype):
    checkpoint = tiny.build("qwen2", tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, attn_implementation="sdpa")
    thinker = load_family("qwen2").load("thinker", checkpoint, "cpu", dtype)
    assert plain.config.num_attention_heads > plain.config.num_key_value_heads
    ids = torch.arange(30, 42).reshape(2, 6)
    positions = torch.arange(6).expand(2, 6)
    mask = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6)
    copy_counts = []

    def repeat_kv(states, count):
        copy_counts.append(count)
        return repeat(states, count)

    def run_decoder(decoder):
        with torch.no_grad():
            return decoder(input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=DynamicCache())

    repeat = sdpa_attention.repeat_kv
    monkeypatch.setattr(sdpa_attention, "repeat_kv", repeat_kv)
    shared_output = run_decoder(thinker.backbone).last_hidden_state
    assert copy_counts == []
    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)
    repeated_output = run_decoder(plain.model).last_hidden_state

    assert copy_counts
    assert torch.equal(shared_output, repeated_output)
