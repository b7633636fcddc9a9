"""One question to the solver: solved over some options, rounded to whole replicas, and checked."""

from dataclasses import dataclass, field

import numpy as np

from omnibus.errors import Fatal
from omnibus_planner.solve import highs
from omnibus_planner.solve.constraints import Terms, mix_shares, most_replicas, replica_vector, work_supply
from omnibus_planner.solve.flow_matrix import FlowMatrix, ServedFlow
from omnibus_planner.solve.highs import Deadline, Vector
from omnibus_planner.solve.milp import Objective, ProgramQuery, assemble_program

#: A rate counts as served within one part in a million: HiGHS works to 1e-6.
SERVED_TOLERANCE = 1e-6
#: The best rate is held to this while ties are broken.
RATE_TOLERANCE = 5e-7
_MAX_REPAIRS = 40


@dataclass(frozen=True)
class SolverAnswer:
    """Whole replicas, their flows under each mix, and the common rate.

    The rate is in req/s. No answer over the same options beats ``bound``: it is in req/s if the rate was the goal, else
    the goal's value.
    """

    replicas: Vector
    served: list[ServedFlow]
    rate: float
    bound: float
    proven: bool


@dataclass
class SolverRun:
    """A question in progress: bounds and goals of its answers.

    Answers serve at least ``lowest`` req/s, and none can serve more than ``highest``. With ``packed``, they fit into
    the nodes. They use at least one option of ``fresh``.
    """

    frame: FlowMatrix
    terms: Terms
    deadline: Deadline
    lowest: float = 0.0
    highest: float = np.inf
    packed: bool = False
    held: list[tuple[Objective, float]] = field(default_factory=list)
    fresh: Vector | None = None
    _cuts: list[Vector] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mixes = mix_shares(self.terms, self.frame)
        self.top = most_replicas(self.terms, self.frame)
        self.running = replica_vector(self.frame, self.terms.running)

    def hold_goal(self, goal: Objective, replicas: Vector) -> None:
        """Forbid answers that are worse by ``goal`` than ``replicas``."""
        self.limit_goal(goal, goal.value(replicas, self.running))

    def limit_goal(self, goal: Objective, value: float) -> None:
        """Forbid answers that are worse by ``goal`` than ``value``."""
        self.held.append((goal, value + 1e-7 * max(1.0, abs(value))))

    def is_decided(self, goal: Objective) -> bool:
        """Return True if ``goal`` is a multiple of a held goal.

        It cannot change then.
        """
        if goal.spawn is not None:
            return False
        allowed = self.top > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [goal.cost[allowed] / held.cost[allowed] for held, _ in self.held if held.spawn is None]
            return any(len(ratio) == 0 or np.ptp(ratio) == 0 for ratio in ratios)

    def served_flows(self, replicas: Vector) -> list[ServedFlow]:
        """Return the flows of ``replicas`` under each mix."""
        given = work_supply(self.terms, self.frame, replicas)
        return [self.frame.solve_flow(given, mix) for mix in self.mixes]

    def solve_over(
        self, goal: Objective | None, keep: Vector, branches: int = highs.MAX_BRANCHES
    ) -> SolverAnswer | None:
        """Return the best answer over the options ``keep``: by ``goal``, or the highest rate. None: there is none.

        HiGHS's solution is rounded and checked. If it is wrong, the reason becomes a row that holds for all
        deployments, and HiGHS solves again.
        """
        count, unit = self.frame.count, self.frame.unit
        goals = [goal for goal, _ in self.held] + ([goal] if goal else [])
        spawning = any(goal.spawn is not None for goal in goals)
        upper = np.where(keep, self.top, 0.0)
        for _ in range(_MAX_REPAIRS):
            low, high = self.lowest * (1 - RATE_TOLERANCE), self.highest * (1 + RATE_TOLERANCE)
            asked = ProgramQuery(low, high, self.mixes, self._cuts, self.held, self.fresh)
            program = assemble_program(self.frame, self.terms, asked, upper, packed=self.packed, spawning=spawning)
            cost = goal.cost_row(count, program.column_count) if goal else -np.eye(1, program.column_count, count)[0]
            found = highs.solve_milp(program, cost, self.deadline, branches=branches)
            if found is None:
                return None
            replicas = np.round(found.x[:count])
            claimed = self.lowest if goal else -found.value * unit
            served = self.served_flows(replicas)
            worst = min(served, key=lambda each: each.rate)
            if worst.rate >= claimed * (1 - SERVED_TOLERANCE):
                bound = found.bound if goal else -found.bound * unit
                return SolverAnswer(replicas, served, worst.rate, bound, found.proven)
            self._cuts.append(worst.prices)
        raise Fatal("the solver and the check of its answers do not agree: are seconds of very different sizes?")
