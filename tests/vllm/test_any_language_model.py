"""Language models without a family of their own answer in vLLM as in the library's ``generate``."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import transformers

from omnibus_models.tiny import _language
from tests import nightly
from tests.oracles import language as oracle
from tests.unit.jobs import finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat
from tests.vllm.conftest import IN_PROCESS, start_vllm

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 24
#: Longer than the windows below.
LONG_CHAT = [{"role": "user", "content": "the small cat sleeps on a warm red mat " * 8}]
CHATS = [*(make_text_chat(number) for number in range(3)), LONG_CHAT]
_HEAD = 32  # the smallest that vLLM's kernels for CPUs take
_WINDOW = {"sliding_window": 32}
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], **_WINDOW}
_TIED = {"tie_word_embeddings": True}  # vLLM's class has no head of its own
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}

#: Prefixes of classes, and what their configurations need. Two run by day.
CLASSES: dict[str, dict[str, Any]] = {
    "Cohere2": {**_LAYERS, **_TIED, "logit_scale": 0.5},
    "Exaone4": {"head_dim": _HEAD, **_LAYERS},
    "Gemma2": {"head_dim": _HEAD, "query_pre_attn_scalar": _HEAD, "final_logit_softcapping": 30.0, **_WINDOW, **_TIED},
    "Glm4": {"head_dim": _HEAD},
    "Granite": {"embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "Llama": {},
    "Mistral": {"head_dim": _HEAD, "sliding_window": None},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "Olmo2": {},
    "Olmo3": _LAYERS,
    "Phi3": {"sliding_window": None},
    "Qwen3Moe": {"head_dim": _HEAD, "num_experts": 4, **_EXPERTS},
    "SmolLM3": {"no_rope_layers": [1, 0], "no_rope_layer_interval": 2},
    "Starcoder2": {"sliding_window": None},
}


_BY_DAY = ("Llama", "Olmo3")


@pytest.fixture(params=[*_BY_DAY, *nightly.mark_nightly(*sorted({*CLASSES} - {*_BY_DAY}))])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    cls, config = (getattr(transformers, f"{request.param}{kind}") for kind in ("ForCausalLM", "Config"))
    _language.write(cls, config, tmp_path, seed=1, wide=True, **CLASSES[request.param])
    return tmp_path


async def test_a_batch_of_different_prompts_says_what_generate_says(checkpoint: Path) -> None:
    jobs = [make_chat_job(chat, max_tokens=TOKENS, ignore_eos=False) for chat in CHATS]

    async with start_vllm("causal_lm", checkpoint, batch=8) as runner:
        await asyncio.gather(*(finish_job(runner, job) for job in jobs))

    answers = [oracle.generate_answer(checkpoint, chat, TOKENS) for chat in CHATS]
    assert [(job.ids, job.text) for job in jobs] == answers
