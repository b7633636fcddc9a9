"""Memory for keys and values as a limit of one replica.

It applies to profiles that contain the sizes (TriInfer, Algorithm 2).
"""

from collections.abc import Mapping

from omnibus.profile import KeyValues, OptionProfile
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.solve.enumerate import bounded_seconds, kv_rate

#: Quantities that count tokens with keys and values in memory.
_KV_QUANTITIES = ("prompt_tokens", "completion_tokens")


class KvMemory:
    """Keys and values of one component, on GPUs of known memory."""

    def __init__(self, kv: KeyValues | None, gpus: Mapping[str, GpuType]) -> None:
        self._kv = kv
        self._gpus = gpus

    def find_misfit(self, option: OptionProfile) -> str:
        """Return why ``option`` has no room for keys and values; empty if it has, or if that is unknown."""
        if self._kv is None or self._kv.component not in option.components:
            return ""
        has = self._total_gb(option)
        if not has or option.weights_gb < has:
            return ""
        return f"its weights take {option.weights_gb:g} of {has:g} GB, and leave none for keys and values"

    def bound_seconds(
        self, option: OptionProfile, role: tuple[str, ...], sizes: Mapping[str, float], seconds: float, latency: float
    ) -> float:
        """Return ``seconds`` per request, or more if memory allows fewer requests.

        Each request holds its tokens for ``latency`` seconds.
        """
        kv, has = self._kv, self._total_gb(option)
        if kv is None or kv.component not in role or not has:
            return seconds
        tokens = sum(sizes.get(name, 0.0) for name in _KV_QUANTITIES)
        return bounded_seconds(seconds, kv_rate(has - option.weights_gb, kv.gb_per_token, tokens, latency))

    def _total_gb(self, option: OptionProfile) -> float:
        if self._kv is None:
            return 0.0
        known = self._gpus.get(option.gpu)
        return (self._kv.memory_gb or (known.memory_gb if known is not None else 0.0)) * option.gpus
