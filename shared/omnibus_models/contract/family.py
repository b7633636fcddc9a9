"""Loader of the components of one architecture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from omnibus import errors
from omnibus_models.contract.language import Reader


class ModelFamily(Protocol):
    """One architecture. ``components`` names those that load alone, such as vision, audio, thinker."""

    name: str
    components: tuple[str, ...]

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load only one component, as one of the protocols above.

        The object has ``module``, a ``torch.nn.Module`` that owns every loaded parameter. Missing weights raise
        ``Fatal`` with their names, an unknown component raises ``NotFound``.
        """

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Reader:
        """Load the thinker without its layers, on the CPU: token embeddings and the final norm."""


def no_component(family: str, components: Sequence[str], component: str) -> errors.NotFound:
    """Return the error of ``ModelFamily.load`` for an unknown component."""
    return errors.NotFound(f"{family} has no component {component!r}; it has {', '.join(components)}")
