"""Tiny Qwen2: ``Qwen2ForCausalLM`` with two layers."""

from pathlib import Path

from omnibus_models.tiny import _language


def write(directory: Path, seed: int, llm_seed: int | None = None, wide: bool = False) -> None:
    """Write model and tokenizer to ``directory``; all of it is the LLM."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    _language.write(Qwen2ForCausalLM, Qwen2Config, directory, seed if llm_seed is None else llm_seed, wide)
