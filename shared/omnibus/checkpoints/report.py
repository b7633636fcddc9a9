"""Report on a checkpoint, made without loading it."""

import msgspec


class ComponentReport(msgspec.Struct, frozen=True):
    """Report on one component. ``nbytes`` is the size of its weights in memory, with all loaded in the report's dtype.

    ``missing`` and ``odd`` are names of weights in the library. The former are not in the checkpoint; the latter have
    another shape there. ``problem`` is the reason why it would not load. ``kv_bytes`` is the cache size of a token,
    ``context`` the length of the longest sequence; 0 without one.
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
        """Return the faults of the component, in words; empty without faults."""
        lacks = [f"lacks {_list_names(self.missing)}"] if self.missing else []
        shapes = [f"has another shape than in its configuration: {_list_names(self.odd)}"] if self.odd else []
        return [*([self.problem] if self.problem else []), *lacks, *shapes]


class TrialComparison(msgspec.Struct, frozen=True):
    """One comparison of a trial: a small copy as it is served, with the same copy in the library.

    ``subject`` says what was compared and how it ran. ``largest`` is the largest absolute difference of logits, samples
    or pixels (0 to 255), ``bound`` the largest that counts as equal; None after an error. ``fault`` is the reason why
    the copy cannot run this way, empty if it can.
    """

    subject: str
    largest: float | None = None
    bound: float | None = None
    fault: str = ""


class TrialReport(msgspec.Struct, frozen=True):
    """Comparisons of the trial of a checkpoint's class, and the ``outcome`` in words. ``admitted`` is False if
    executors do not serve the class. A family with code of its own has no trial."""

    family: str
    admitted: bool
    outcome: str
    comparisons: list[TrialComparison] = []


class Report(msgspec.Struct, frozen=True):
    """Report on a checkpoint. ``stored`` is bytes in its files by dtype, empty for a configuration without weights.

    ``lost`` are missing files that an index names, ``broken`` are the faults of others. ``vllm`` is the reason why vLLM
    cannot run its language model, empty if it can. ``adapters`` are the LoRA adapters that were checked with it, and
    why each does not fit; empty if it does. ``sampling`` is that of ``generation_config``, recommended by its authors.
    ``notes`` are what a GGUF file lacks, in words.
    ``image_defaults`` are the fields of ``omnibus.model_defaults.ImageDefaults`` that the checkpoint has.
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
    notes: list[str] = []
    image_defaults: dict[str, int | bool] = {}

    @property
    def complete(self) -> bool:
        """Return True if all components would load."""
        faults = [fault for part in self.parts.values() for fault in part.faults]
        return bool(self.stored) and not (self.lost or self.broken or faults or any(self.adapters.values()))


def _list_names(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} weight{'s' if len(names) > 1 else ''}: {', '.join(names[:most])}{more}"
