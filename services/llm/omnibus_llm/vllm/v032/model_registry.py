"""Registration of the classes that run a model's layers."""

from collections.abc import Iterable
from typing import Any


def register_models(architectures: Iterable[str]) -> None:
    """Import the classes of ``architectures`` in this process.

    vLLM would otherwise start a process to inspect each of them.
    """
    from vllm import ModelRegistry

    from omnibus_llm.vllm.v032.qwen3_vl import DEEP, make_towerless_class

    for name in architectures:
        model_class = ModelRegistry.models.get(name)
        if model_class is not None:
            cls = model_class.load_model_cls()
            ModelRegistry.register_model(name, make_towerless_class(cls) if name in DEEP else cls)


def find_architectures(config: Any) -> list[str]:
    """Return the architectures of the models of a ``VllmConfig``: the served one, and its draft model."""
    draft = None if config.speculative_config is None else config.speculative_config.draft_model_config
    return [*config.model_config.architectures, *([] if draft is None else draft.architectures)]
