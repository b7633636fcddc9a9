"""Loader of the components of one architecture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from omnibus import errors
from omnibus_models.contract.language import Reader


class ModelFamily(Protocol):
    """One architecture. ``components`` names what can be loaded alone, e.g. vision, audio, thinker."""

    name: str
    components: tuple[str, ...]

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load one component and nothing else: one of the protocols above.

        The object carries ``module`` (a ``torch.nn.Module`` that owns every loaded parameter). Missing
        weights raise ``Fatal`` with their names, another component ``NotFound``.
        """

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Reader:
        """The thinker without its layers, on the CPU: it loads token embeddings and the final norm alone."""


def no_component(family: str, components: Sequence[str], wanted: str) -> errors.NotFound:
    """Return the error that ``ModelFamily.load`` raises for a component that the family does not have."""
    return errors.NotFound(f"{family} has no component {wanted!r}; it has {', '.join(components)}")
