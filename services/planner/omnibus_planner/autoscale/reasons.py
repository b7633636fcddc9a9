"""Short reason for a plan that follows the load: ``load: qwen 12.1 req/s, 61 % vision+thinker (was 20 %)``."""

from collections.abc import Iterator, Mapping

from omnibus_planner.optimize.load import Loads, ModelLoad

#: Smallest changes to mention: of a rate and of a quantity relative to before, of a share as a fraction of all.
MIN_RATE_CHANGE, MIN_QUANTITY_CHANGE, MIN_SHARE_CHANGE = 0.1, 0.2, 0.03
_NO_LOAD = ModelLoad(0.0)


def describe_load_change(load: Loads, before: Loads) -> str:
    """Describe the changes since the load ``before``; each model's rate is always included."""
    return "load: " + "; ".join(
        f"{name} {', '.join(_describe_model_change(load[name], before.get(name, _NO_LOAD)))}" for name in sorted(load)
    )


def _describe_model_change(load: ModelLoad, before: ModelLoad) -> Iterator[str]:
    has_changed = before.rate > 0 and abs(load.rate / before.rate - 1) > MIN_RATE_CHANGE
    yield f"{load.rate:.3g} req/s" + (f" (was {before.rate:.3g})" if has_changed else "")
    shares, were = _normalized_shares(load), _normalized_shares(before)
    shifts = {kind: abs(share - were.get(kind, 0.0)) for kind, share in shares.items()}
    name = max(shifts, key=lambda kind: (round(shifts[kind], 3), kind.count("+")), default="")  # the more specific one
    if name and were and shifts[name] > MIN_SHARE_CHANGE:
        yield f"{100 * shares[name]:.0f} % {name} (was {100 * were.get(name, 0.0):.0f} %)"
    known_shares = {
        kind: share for kind, share in shares.items() if kind in load.quantities and kind in before.quantities
    }
    quantities, had = _mean_quantities(load, known_shares), _mean_quantities(before, known_shares)
    changes = {name: abs(mean / had[name] - 1) for name, mean in quantities.items() if had.get(name, 0.0) > 0}
    name = max(changes, key=lambda each: changes[each], default="")
    if name and changes[name] > MIN_QUANTITY_CHANGE:
        yield f"{quantities[name]:.0f} {name} (were {had[name]:.0f})"


def _normalized_shares(load: ModelLoad) -> dict[str, float]:
    total = sum(load.shares.values())
    return {kind: share / total for kind, share in load.shares.items()} if total > 0 else {}


def _mean_quantities(load: ModelLoad, shares: Mapping[str, float]) -> dict[str, float]:
    """Return the mean quantities over these types, at fixed shares.

    So differences do not come from the mix alone.
    """
    sums: dict[str, float] = {}
    for kind, share in shares.items():
        for name, mean in load.quantities.get(kind, {}).items():
            sums[name] = sums.get(name, 0.0) + share * mean
    total = sum(shares.values())
    return {name: mean / total for name, mean in sums.items()}
