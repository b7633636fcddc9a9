"""Terms of a question: the constraints that a deployment must satisfy."""

from collections.abc import Mapping

import msgspec
import numpy as np

from omnibus_planner.solve.flow_matrix import FlowMatrix
from omnibus_planner.solve.highs import MAX_BRANCHES, Vector
from omnibus_planner.solve.problem import Infeasible, check_amount, check_shares, require


class SolverNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine with ``gpus`` of type ``gpu``; a replica cannot span two."""

    gpus: int
    gpu: str = ""


#: Replicas by option and node.
Places = dict[str, dict[str, int]]


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constraints of a question.

    ``gpus`` are the available GPUs by type; None means unlimited. ``running`` are the replicas that run already. Among
    equals, the solver starts the fewest new ones, weighted by start_s * gpus; None ignores them. ``without`` are
    options that must not be used. ``admissible`` is, by option, the work per second that 1, 2, ... replicas may get
    (``utilisation.py``), instead of 1, 2, ... ``scenarios`` are mixes that the same replicas must serve, each with its
    own routing; the first is the usual one. If empty, the declared shares count. ``nodes`` are machines that replicas
    must fit into. ``covers`` are groups of options; each needs a replica, even if no request uses it. ``branches``
    ends the search in each program, and ``within`` is the safety limit in seconds of the whole question.
    """

    gpus: dict[str, int] | None = None
    running: dict[str, int] | None = None
    without: tuple[str, ...] = ()
    admissible: dict[str, tuple[float, ...]] = {}
    scenarios: tuple[dict[str, float], ...] = ()
    nodes: dict[str, SolverNode] = {}
    covers: tuple[tuple[str, ...], ...] = ()
    branches: int = MAX_BRANCHES
    within: float = 10.0


def check_terms(terms: Terms, frame: FlowMatrix) -> None:
    """Raises ``BadRequest`` with the first fault."""
    require(terms.within > 0, f"within is {terms.within} s: a question needs time")
    for kind, count in (terms.gpus or {}).items():
        require(count >= 0, f"there are {count} GPUs{kind and ' of type '}{kind}")
    for name, count in (terms.running or {}).items():
        require(count >= 0, f"{count} replicas of {name} run")
    covering = {name for group in terms.covers for name in group}
    unknown = sorted({*terms.without, *terms.admissible, *covering} - set(frame.network.option_names))
    require(not unknown, f"the terms name {', '.join(unknown)}, which are no options")
    for name, work in terms.admissible.items():
        require(bool(work), f"the admissible work of {name} is empty")
        for count, value in enumerate(work, 1):
            check_amount(value, f"the admissible work of {count} x {name}")
            require(value <= count, f"{count} x {name} cannot do {value} seconds of work per second")
    for name, node in terms.nodes.items():
        require(node.gpus >= 0, f"node {name} has {node.gpus} GPUs")
    for shares in mix_shares(terms, frame):
        check_shares(shares)


def mix_shares(terms: Terms, frame: FlowMatrix) -> list[tuple[float, ...]]:
    """Return the shares by type number: of each scenario, or the declared ones."""
    return [frame.network.type_shares(shares) for shares in terms.scenarios] or [frame.network.type_shares()]


def available_gpus(terms: Terms) -> dict[str, int] | None:
    """Return the GPUs by type: those in the terms, at most those of the nodes."""
    if not terms.nodes:
        return terms.gpus
    have: dict[str, int] = {}
    for node in terms.nodes.values():
        have[node.gpu] = have.get(node.gpu, 0) + node.gpus
    if terms.gpus is None:
        return have
    return {kind: min(count, have.get(kind, 0)) for kind, count in terms.gpus.items()}


def most_replicas(terms: Terms, frame: FlowMatrix) -> Vector:
    """Return the most replicas of each option that the terms allow; inf if unbounded."""
    have, found = available_gpus(terms), np.full(frame.count, np.inf)
    largest: dict[str, int] = {}
    for node in terms.nodes.values():
        largest[node.gpu] = max(largest.get(node.gpu, 0), node.gpus)
    for at, (name, option) in enumerate(frame.network.options.items()):
        if have is not None:
            found[at] = have.get(option.gpu, 0) // option.gpus
        if name in terms.without or (terms.nodes and option.gpus > largest.get(option.gpu, 0)):
            found[at] = 0.0
        if name in terms.admissible:
            found[at] = min(found[at], len(terms.admissible[name]))
    return found


def work_supply(terms: Terms, frame: FlowMatrix, replicas: Vector) -> Vector:
    """Return the seconds of work per second that these replicas, and limited links, may get."""
    found = np.ones(frame.work_rows)
    found[: frame.count] = replicas
    for name, work in terms.admissible.items():
        at = frame.network.option_numbers[name]
        found[at] = work[int(replicas[at]) - 1] if replicas[at] > 0 else 0.0
    return found


def replicas_by_name(frame: FlowMatrix, vector: Vector) -> dict[str, int]:
    """Return the replicas by option, without options that have none."""
    return {
        name: round(float(count)) for name, count in zip(frame.network.option_names, vector, strict=True) if count > 0.5
    }


def covering_rows(terms: Terms, frame: FlowMatrix) -> list[Vector]:
    """Return a row for each group of ``terms.covers``, with 1 for its options."""
    rows = [np.zeros(frame.count) for _ in terms.covers]
    for row, group in zip(rows, terms.covers, strict=True):
        row[[frame.network.option_numbers[name] for name in group]] = 1.0
    return rows


def replica_vector(frame: FlowMatrix, replicas: Mapping[str, int] | None) -> Vector:
    """Return the replicas by option number, without options that no longer exist."""
    return np.array([float((replicas or {}).get(name, 0)) for name in frame.network.option_names])


def no_path_error(kinds: list[str]) -> Infeasible:
    return Infeasible(
        f"no path serves requests of type {', '.join(kinds)}: declare and profile an option for each component "
        "that it uses, one that fits the GPUs"
    )
