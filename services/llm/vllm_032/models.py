"""Which classes run a model's layers."""

from collections.abc import Iterable


def register(architectures: Iterable[str]) -> None:
    """Import the classes of ``architectures`` here, before vLLM starts a process to look at each of them."""
    from vllm import ModelRegistry

    for name in architectures:
        known = ModelRegistry.models.get(name)
        if known is not None:
            ModelRegistry.register_model(name, known.load_model_cls())
