"""Under which terms a deployment is looked for."""

from collections.abc import Mapping

import msgspec
import numpy as np

from services.planner.solve.flow_matrix import FlowMatrix
from services.planner.solve.highs import Vector
from services.planner.solve.problem import Infeasible, check_amount, check_shares, require


class SolverNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine with ``gpus`` of type ``gpu``; a replica does not span two."""

    gpus: int
    gpu: str = ""


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``gpus`` at hand by GPU type; None: as many as it takes.

    ``running``: replicas that run already; among equals the fewest new ones are started, weighed by
    start_s * gpus. None: does not matter. ``without``: options that must not be used. ``admissible``: of an
    option, the work per second that 1, 2, ... replicas may be given (``utilisation.py``), instead of 1, 2, ...
    ``scenarios``: mixes that the same replicas must serve, each with routing of its own; the first is the
    usual one. None of them: the declared shares. ``nodes``: machines that replicas must fit into.
    ``covers``: groups of options, of each of which there must be a replica, whether requests use it or not.
    ``within``: seconds for the whole question.
    """

    gpus: dict[str, int] | None = None
    running: dict[str, int] | None = None
    without: tuple[str, ...] = ()
    admissible: dict[str, tuple[float, ...]] = {}
    scenarios: tuple[dict[str, float], ...] = ()
    nodes: dict[str, SolverNode] = {}
    covers: tuple[tuple[str, ...], ...] = ()
    within: float = 10.0


def check_terms(terms: Terms, frame: FlowMatrix) -> None:
    """Raises ``BadRequest`` that names the first fault."""
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
    """Shares by type number: of each scenario, or the declared ones."""
    return [frame.network.type_shares(shares) for shares in terms.scenarios] or [frame.network.type_shares()]


def available_gpus(terms: Terms) -> dict[str, int] | None:
    """GPUs by type: what was given, and no more than the nodes have."""
    if not terms.nodes:
        return terms.gpus
    have: dict[str, int] = {}
    for node in terms.nodes.values():
        have[node.gpu] = have.get(node.gpu, 0) + node.gpus
    if terms.gpus is None:
        return have
    return {kind: min(count, have.get(kind, 0)) for kind, count in terms.gpus.items()}


def most_replicas(terms: Terms, frame: FlowMatrix) -> Vector:
    """Return the largest number of replicas of each option that the terms allow; inf when nothing bounds it."""
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
    """Seconds of work per second that these replicas may be given."""
    found = np.array(replicas, float)
    for name, work in terms.admissible.items():
        at = frame.network.option_numbers[name]
        found[at] = work[int(replicas[at]) - 1] if replicas[at] > 0 else 0.0
    return found


def replicas_by_name(frame: FlowMatrix, vector: Vector) -> dict[str, int]:
    """Replicas by option; those with none are left out."""
    return {
        name: round(float(count)) for name, count in zip(frame.network.option_names, vector, strict=True) if count > 0.5
    }


def covering_rows(terms: Terms, frame: FlowMatrix) -> list[Vector]:
    """Of each group of ``terms.covers``, 1 for the options in it."""
    rows = [np.zeros(frame.count) for _ in terms.covers]
    for row, group in zip(rows, terms.covers, strict=True):
        row[[frame.network.option_numbers[name] for name in group]] = 1.0
    return rows


def replica_vector(frame: FlowMatrix, replicas: Mapping[str, int] | None) -> Vector:
    """Replicas by option number; options that are no longer there are left out."""
    return np.array([float((replicas or {}).get(name, 0)) for name in frame.network.option_names])


def no_path_error(kinds: list[str]) -> Infeasible:
    return Infeasible(
        f"no path serves requests of type {', '.join(kinds)}: declare and profile an option for each component "
        "that it uses, one that fits the GPUs"
    )
