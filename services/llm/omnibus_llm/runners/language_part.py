"""Base of the runners of one loaded language model.

They can switch roles without loading it again.
"""

from typing import Any, ClassVar

from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus_llm.engine.model import ThinkerCore


class LanguagePart:
    """Base class of the runners of a language model.

    ``component`` is the component that a subclass runs, and ``decodes`` is True if it decodes answers.
    """

    _by_component: ClassVar[dict[str, type["LanguagePart"]]] = {}
    _decodes: ClassVar[bool] = True

    def __init_subclass__(cls, *, component: str = "", decodes: bool = True) -> None:
        if component:
            cls._by_component[component] = cls
            cls._decodes = decodes

    def __init__(self, core: ThinkerCore) -> None:
        self._core = core

    def switch_role(self, component: str, settings: ExecutorSettings) -> "LanguagePart":
        """See ``Runner``: every part of a language model has all of it."""
        make_runner = self._by_component.get(component)
        if make_runner is None:
            raise BadRequest(f"{component} is not part of a language model")
        return make_runner(self._core)

    async def load(self) -> None:
        await self._core.load()
        if self._decodes:
            await self._core.engine.start_decoding()

    async def close(self) -> None:
        await self._core.close()

    def stats(self) -> dict[str, Any]:
        return self._core.stats()
