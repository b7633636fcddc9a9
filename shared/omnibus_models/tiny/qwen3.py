"""Tiny Qwen3: ``Qwen3ForCausalLM`` with two layers."""

from pathlib import Path

from omnibus_models.tiny import _language


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model and tokenizer to ``directory``; all of it is the LLM."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size = 32 if wide else 16  # of a head
    seed = seed if llm_seed is None else llm_seed
    _language.write(Qwen3ForCausalLM, Qwen3Config, directory, seed, wide, head_dim=size)
