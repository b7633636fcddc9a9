"""Engines: they compute the components of a model. ``omnibus_engines:NAME`` in a declaration names one of them."""

from omnibus_engines.registry import sim, transformers, vllm

__all__ = ["sim", "transformers", "vllm"]
