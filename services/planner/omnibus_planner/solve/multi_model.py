"""Several models planned at once: executors of a shared component serve all of them."""

from collections.abc import Mapping

import msgspec

from omnibus_planner.solve.flow_network import Arc, Network, Use
from omnibus_planner.solve.problem import SolverOption, check_amount, require


class JointModel(msgspec.Struct, frozen=True):
    """A model's network and its rate in req/s. The rates of all models keep their proportions."""

    network: Network
    rate: float


def join_networks(parts: Mapping[str, JointModel], same: Mapping[str, str] | None = None) -> Network:
    """Join the networks of all models; rate 1 is every model at its own rate.

    Options and request types are named ``model/option`` and ``model/type``. ``same`` maps options to another model's
    options: ``{"b/E": "a/E"}``. Both must take the same GPUs, but their seconds may differ. ``Solver.solve_least(1.0)``
    then plans for all rates at once, and ``solve_most`` for the largest multiple of the rates that fits.
    """
    same = same or {}
    options = {
        f"{model}/{name}": option for model, part in parts.items() for name, option in part.network.options.items()
    }
    for mine, theirs in same.items():
        _check_shared_option(mine, theirs, options, same)
    kept = {name: option for name, option in options.items() if name not in same}
    number = {name: at for at, name in enumerate(kept)}
    types: list[str] = []
    shares: list[float] = []
    whole: list[int] = []
    arcs: list[Arc] = []
    for model, part in parts.items():
        rate, network = check_amount(part.rate, f"the rate of model {model}"), part.network
        where = [number[same.get(f"{model}/{name}", f"{model}/{name}")] for name in network.option_names]
        arcs += [_renumber_arc(arc, len(types), where) for arc in network.arcs]
        types += [f"{model}/{kind}" for kind in network.types]
        shares += [share * rate for share in network.shares]
        whole += network.whole
    return Network(kept, tuple(types), tuple(shares), tuple(whole), tuple(arcs))


def _renumber_arc(arc: Arc, kinds: int, where: list[int]) -> Arc:
    uses = tuple(Use(where[use.option], use.seconds, use.role) for use in arc.uses)
    return Arc(arc.kind + kinds, arc.tail, arc.head, uses)


def _check_shared_option(mine: str, theirs: str, options: Mapping[str, SolverOption], same: Mapping[str, str]) -> None:
    for name in (mine, theirs):
        require(name in options, f"{mine} is said to be {theirs}, but there is no option {name}")
    require(theirs not in same, f"{mine} is said to be {theirs}, which is {same.get(theirs)}: name that one")
    one, other = options[mine], options[theirs]
    require(
        (one.gpus, one.gpu) == (other.gpus, other.gpu),
        f"{mine} is said to be {theirs}, but they take {one.gpus} and {other.gpus} GPUs {one.gpu} {other.gpu}".rstrip(),
    )
