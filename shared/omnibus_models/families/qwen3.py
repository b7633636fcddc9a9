"""Qwen3: a language model (``Qwen3ForCausalLM``)."""

from omnibus_models.families._text_only import Language

FAMILY = Language("qwen3", "Qwen3ForCausalLM")
