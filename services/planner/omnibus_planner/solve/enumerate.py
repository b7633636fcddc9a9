"""Deployment options that fit their GPUs' memory, and limits by KV memory."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from omnibus.families.plugins import join_names
from omnibus_planner.solve.problem import MAX_COMPONENTS, Infeasible, SolverOption, check_amount, require

#: Fraction of a GPU's memory for weights, keys and values (TriInfer, Algorithm 2: gamma).
GAMMA = 0.9


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A type of GPU: memory of one in GB, and its price in any unit."""

    memory_gb: float
    price: float = 1.0


def enumerate_options(
    weights_gb: Mapping[str, float],
    gpus: Mapping[str, Gpu],
    degrees: Sequence[int] = (1,),
    *,
    only: Iterable[Collection[str]] | None = None,
    gamma: float = GAMMA,
    start_s: Mapping[str, float] | None = None,
) -> dict[str, SolverOption]:
    """Return the options whose weights fit: sets of components by GPU type and degree.

    ``weights_gb`` are the weights of each component, in the model's order. ``only`` are the sets (default: all 2^n -
    1). ``start_s`` are the seconds to load each component, which add up. An option does not fit if weights > gamma *
    memory * degree. Raises ``Infeasible`` for a component that fits no GPU.
    """
    require(bool(weights_gb) and bool(gpus) and bool(degrees), "there is no component, no GPU type or no degree")
    require(0 < gamma <= 1, f"gamma is {gamma}: it must be more than 0 and at most 1")
    require(all(degree >= 1 for degree in degrees), f"tensor-parallel degrees are {list(degrees)}: they start at 1")
    for name, weight in weights_gb.items():
        check_amount(weight, f"weights_gb of component {name}")
    for name, gpu in gpus.items():
        check_amount(gpu.memory_gb, f"memory_gb of GPU type {name!r}")
        check_amount(gpu.price, f"the price of GPU type {name!r}")
    found: dict[str, SolverOption] = {}
    for parts in _component_sets(tuple(weights_gb), only):
        needed, starts = sum(weights_gb[part] for part in parts), start_s or dict.fromkeys(parts, 1.0)
        for kind, gpu in gpus.items():
            for degree in sorted(set(degrees)):
                if needed <= gamma * gpu.memory_gb * degree:
                    name = _option_name(parts, kind if len(gpus) > 1 else "", degree)
                    begin = sum(starts.get(part, 0.0) for part in parts)
                    found[name] = SolverOption(parts, degree, kind, degree, needed, gpu.price * degree, begin)
    lost = set(weights_gb) - {part for option in found.values() for part in option.components}
    if lost:
        raise Infeasible(
            f"{join_names(lost)}: the weights fit no GPU, not even {max(degrees)} of the largest: allow a higher "
            "tensor-parallel degree, or GPUs with more memory"
        )
    return found


def _component_sets(components: tuple[str, ...], only: Iterable[Collection[str]] | None) -> Iterator[tuple[str, ...]]:
    if only is None:
        require(len(components) <= MAX_COMPONENTS, f"{len(components)} components have too many sets: name some")
        for count in range(1, len(components) + 1):
            yield from combinations(components, count)
        return
    for chosen in only:
        unknown = set(chosen) - set(components)
        require(bool(chosen) and not unknown, f"an option of {join_names(chosen)}; there is {join_names(components)}")
        yield tuple(part for part in components if part in chosen)


def _option_name(parts: tuple[str, ...], gpu: str, degree: int) -> str:
    return "+".join(parts) + (f"-tp{degree}" if degree > 1 else "") + (f"@{gpu}" if gpu else "")


def kv_rate(free_gb: float, kv_gb_per_token: float, tokens: float, latency_s: float, gamma: float = GAMMA) -> float:
    """Return one replica's highest rate by KV memory, in req/s.

    ``free_gb`` is the memory of its GPUs without the weights. A request holds ``tokens`` of ``kv_gb_per_token`` for
    ``latency_s`` seconds (TriInfer, Algorithm 2, line 9, as a rate).
    """
    check_amount(latency_s, "latency_s")
    held = check_amount(kv_gb_per_token, "kv_gb_per_token") * check_amount(tokens, "tokens") * latency_s
    return gamma * max(0.0, free_gb) / held if held > 0 else float("inf")


def bounded_seconds(seconds: float, rate: float) -> float:
    """Return seconds per request for at most ``rate`` req/s: 1 / min(1/seconds, rate)."""
    require(rate > 0, "a replica with no memory for keys and values serves nothing: leave the option out")
    return max(seconds, 1.0 / rate)
