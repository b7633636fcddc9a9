"""Engines: they compute the components of a model. ``omnibus_engines:NAME`` in a declaration names one of them."""

from omnibus_engines.registry import llama_cpp, sim, transformers, vllm

__all__ = ["llama_cpp", "sim", "transformers", "vllm"]
