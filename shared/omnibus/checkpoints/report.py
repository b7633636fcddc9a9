"""Report on a checkpoint, made without loading it."""

import msgspec


class ComponentReport(msgspec.Struct, frozen=True):
    """One component. ``nbytes`` is what its weights take in memory, all that is loaded in the report's dtype.

    ``missing`` and ``odd`` are names of weights, as the library calls them: those that the checkpoint does not have,
    and those that have another shape there. ``problem`` is why it would not load. ``kv_bytes`` is what a token takes
    in its cache, ``context`` the longest sequence; 0 for what has none.
    """

    parameters: int = 0
    nbytes: int = 0
    missing: list[str] = []
    odd: list[str] = []
    problem: str = ""
    kv_bytes: int = 0
    context: int = 0

    @property
    def faults(self) -> list[str]:
        """Faults of the component, in words; empty when there are none."""
        lacks = [f"lacks {_list_names(self.missing)}"] if self.missing else []
        shapes = [f"has another shape than its configuration says: {_list_names(self.odd)}"] if self.odd else []
        return [*([self.problem] if self.problem else []), *lacks, *shapes]


class Report(msgspec.Struct, frozen=True):
    """A checkpoint. ``stored`` is bytes in its files by dtype, empty for a configuration without weights.

    ``lost`` are files that are not there although an index names them, ``broken`` says what is wrong with others.
    ``vllm`` is why vLLM does not run its language model; empty when nothing speaks against it. ``adapters`` are the
    LoRA adapters that were looked at with it, and why each does not fit; empty when it does. ``sampling`` is what its
    authors recommend, see ``generation_config``.
    """

    path: str
    family: str
    dtype: str
    parts: dict[str, ComponentReport]
    stored: dict[str, int] = {}
    files: int = 0
    lost: list[str] = []
    broken: list[str] = []
    vllm: str = ""
    adapters: dict[str, str] = {}
    sampling: dict[str, float] = {}

    @property
    def complete(self) -> bool:
        """True if all components would load."""
        faults = [fault for part in self.parts.values() for fault in part.faults]
        return bool(self.stored) and not (self.lost or self.broken or faults or any(self.adapters.values()))


def _list_names(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} weight{'s' if len(names) > 1 else ''}: {', '.join(names[:most])}{more}"
