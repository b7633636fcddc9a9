"""Text-only language models in the library, whole and in one process."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from omnibus_models import torchvision_cpu

torchvision_cpu.install_operators()

Messages = Sequence[Mapping[str, str]]


def generate_answer(checkpoint: Path, messages: Messages, max_tokens: int, **more: Any) -> tuple[list[int], str]:
    """Greedy ids and text; ``more`` is passed to ``generate``."""
    model, tokenizer = _load_whole(checkpoint)
    ids = torch.tensor([make_prompt(checkpoint, messages)])
    mask = torch.ones_like(ids)
    out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, **more)
    answer_ids = out[0, ids.shape[1] :].tolist()
    return answer_ids, tokenizer.decode(answer_ids, skip_special_tokens=True)


def answer_margin(checkpoint: Path, messages: Messages, max_tokens: int) -> float:
    """The smallest lead of a greedy token over the second one, in logits."""
    model, _ = _load_whole(checkpoint)
    ids = torch.tensor([make_prompt(checkpoint, messages)])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return min(float(first - second) for first, second in (logits[0].topk(2).values for logits in out.logits))


def make_prompt(checkpoint: Path, messages: Messages) -> list[int]:
    """The ids of a chat, ready for an answer."""
    _, tokenizer = _load_whole(checkpoint)
    ids: list[int] = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)["input_ids"]
    return ids


@functools.cache
def _load_whole(checkpoint: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    return model, AutoTokenizer.from_pretrained(checkpoint)
