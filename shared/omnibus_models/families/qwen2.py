"""Qwen2 and Qwen2.5: a language model (``Qwen2ForCausalLM``)."""

from omnibus_models.families._text_only import TextFamily

FAMILY = TextFamily("qwen2", "Qwen2ForCausalLM")
