"""Links between nodes: bandwidth, seconds of a transfer, and unavoidable transfers."""

from collections.abc import Mapping
from itertools import permutations

from omnibus.profile import OptionProfile
from omnibus_planner.declared.planned_spec import DeclaredNode
from omnibus_planner.optimize.model_inputs import ModelInputs

#: Seconds of a pull in addition to those of its bytes: 4 KiB between two sidecars over loopback took 0.45 ms.
PULL_SECONDS = 0.0005
#: GB/s of a pull over a link of unknown capacity: 64 MiB over loopback took 54 ms of CPU of both sidecars.
PULL_GB_S = 1.2
#: Fraction of a link's capacity that is tensors: the rest of 1,500-byte frames is Ethernet, IP and TCP headers.
PAYLOAD_FRACTION = 0.95


def payload_gb_s(node: DeclaredNode | None) -> float | None:
    """Return the declared GB/s of tensors over the link of ``node``; None if not declared."""
    return PAYLOAD_FRACTION * node.link_gb_s if node is not None and node.link_gb_s else None


def declared_gb_s(nodes: Mapping[str, DeclaredNode], start: str, end: str) -> float | None:
    """Return the declared GB/s of the slower link, for tensors.

    It is None if neither is declared.
    """
    known = [size for name in (start, end) if (size := payload_gb_s(nodes.get(name)))]
    return min(known) if known else None


def transfer_seconds(gb: float, gb_s: float | None) -> float:
    """Return the seconds of one pull while nothing else is pulled."""
    return PULL_SECONDS + gb / (gb_s or PULL_GB_S)


def unavoidable_seconds(ready: ModelInputs, option: OptionProfile, *, sends: bool = False) -> float:
    """Return the least seconds for a request's tensors to reach ``option``.

    They come from other nodes, and the minimum is over all placements of replicas. With ``sends`` it is for the
    option's outputs. It is 0 if a node can hold both ends of each edge.
    """
    if len(ready.nodes) < 2:
        return 0.0
    edges = ready.edges.outgoing_edges(option.components) if sends else ready.edges.incoming_edges(option.components)
    total = 0.0
    for source, target in edges:
        others = [ready.options[name] for name in ready.options_running(target if sends else source)]
        if others and not any(_fits_together(ready.nodes, option, other) for other in others):
            total += transfer_seconds(ready.edges.largest_gb(source, target), _fastest_gb_s(ready.nodes))
    return total


def _fits_together(nodes: Mapping[str, DeclaredNode], one: OptionProfile, other: OptionProfile) -> bool:
    return one.gpu == other.gpu and any(
        node.gpu == one.gpu and node.gpus >= one.gpus + other.gpus for node in nodes.values()
    )


def _fastest_gb_s(nodes: Mapping[str, DeclaredNode]) -> float:
    return max(declared_gb_s(nodes, start, end) or PULL_GB_S for start, end in permutations(nodes, 2))
