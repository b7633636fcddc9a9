"""Qwen3: a language model (``Qwen3ForCausalLM``)."""

from omnibus_models.families._text_only import TextFamily

FAMILY = TextFamily("qwen3", "Qwen3ForCausalLM")
