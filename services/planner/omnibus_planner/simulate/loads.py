"""Sizes of a request as loads of components: tokens that each reads, steps that it takes."""

from collections.abc import Mapping, Sequence

import msgspec

from omnibus.executor.sim.request import ComponentLoad


def component_loads(
    components: Sequence[str],
    kinds: Mapping[str, str],
    encoders: Mapping[str, str],
    sizes: Mapping[str, float],
    codes_per_second: float,
    chunk: int,
) -> dict[str, ComponentLoad]:
    """Return the loads of ``components``, in the order in which data flows.

    ``encoders`` are components by modality. Codes go to vocoders in messages of ``chunk``. The device draws the sizes
    that are not in ``sizes``.
    """
    sizes = {**sizes, "codes": sizes.get("speech_seconds", 0.0) * codes_per_second}
    found = {part: _component_load(part, kinds[part], encoders, sizes) for part in components}
    return {
        part: msgspec.structs.replace(load, chunk=chunk) if kinds[part] == "vocode" else load
        for part, load in found.items()
    }


def _component_load(part: str, kind: str, encoders: Mapping[str, str], sizes: Mapping[str, float]) -> ComponentLoad:
    if kind == "encode":
        names = [f"{modality}_tokens" for modality, encoder in encoders.items() if encoder == part]
        tokens = sum(sizes.get(name, 0.0) for name in names)
        items = max(1, round(sizes.get("images", 1.0))) if sizes.get("image_tokens") else 1
        return ComponentLoad(max(1, round(tokens / items)) if tokens else None, None, items)
    if kind in ("think", "prefill", "decode"):
        return ComponentLoad(_count(sizes, "prompt_tokens"), _count(sizes, "completion_tokens"))
    if kind in ("talk", "vocode"):
        return ComponentLoad(_count(sizes, "prompt_tokens"), _count(sizes, "codes"))
    return ComponentLoad()


def _count(sizes: Mapping[str, float], name: str) -> int | None:
    """Return the size in whole units; None if it is unknown."""
    value = sizes.get(name, 0.0)
    return max(1, round(value)) if value > 0 else None
