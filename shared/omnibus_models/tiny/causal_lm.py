"""A tiny language model without a family of its own: ``Gemma2ForCausalLM`` with a window and soft caps."""

from pathlib import Path

from omnibus_models.tiny import _language

WINDOW = 32  # tokens


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model and tokenizer to ``directory``; all of it is the LLM."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    size = 32 if wide else 16  # of a head
    more = {"head_dim": size, "query_pre_attn_scalar": size, "sliding_window": WINDOW, "final_logit_softcapping": 30.0}
    _language.write(Gemma2ForCausalLM, Gemma2Config, directory, seed if llm_seed is None else llm_seed, wide, **more)
