"""A model deployed and adapted in a small world: replicas of an encoder and a thinker."""

from typing import NamedTuple

from omnibus_planner.autoscale.policy import (
    DeploymentCapacity,
    ScalingGoal,
    ScalingPolicy,
    ScalingRules,
    ScalingSnapshot,
    Verdict,
)
from omnibus_planner.optimize import ModelLoad

RULES = ScalingRules(window=10.0, margin=0.1, hold=20.0, cooldown=60.0, least=20)
START = 8.0  # seconds
PATIENCE = 40.0  # seconds: five starts
SEEN, TEXT = "vision+thinker", "thinker"
GPUS = 8
IMAGE, TOKEN = 0.1, 0.001  # seconds of an encoder per image, of a thinker per token


def load(rate: float, seen: float = 0.5, tokens: float = 100.0) -> ModelLoad:
    words = {"completion_tokens": tokens}
    return ModelLoad(rate, {SEEN: seen, TEXT: 1 - seen}, {SEEN: words, TEXT: words})


class Cells(NamedTuple):
    """Replicas of an encoder and of a thinker."""

    encoders: int
    thinkers: int

    def serves(self, load: ModelLoad) -> float:
        seen, tokens = load.shares[SEEN], load.quantities[TEXT]["completion_tokens"]
        image = self.encoders / (seen * IMAGE) if seen else float("inf")
        return min(image, self.thinkers / (tokens * TOKEN))


ALL = [Cells(e, n - e) for n in range(2, GPUS + 1) for e in range(1, n)]


class House:
    """A model that is deployed and adapted, on a test clock."""

    def __init__(self, goal: ScalingGoal | None = None, cells: Cells | None = None) -> None:
        self.now = 0.0
        self.goal = goal or ScalingGoal()
        self.cells = cells or Cells(4, 4)
        self.changes: list[tuple[float, Verdict, Cells]] = []
        self.adapt = ScalingPolicy({"vl": self.goal}, RULES, START, lambda: self.now)

    def best(self, wanted: ModelLoad) -> Cells:
        """Return the fewest replicas for the rate and its headroom. If none suffice, returns those that serve most."""
        if self.goal.gpus:
            rate = wanted.rate * (1 + self.goal.headroom)
            return next((cells for cells in ALL if cells.serves(wanted) >= rate), self._most(wanted))
        return self._most(wanted)

    def _most(self, wanted: ModelLoad) -> Cells:
        return max(ALL, key=lambda cells: cells.serves(wanted))

    def second(self, measured: ModelLoad | None) -> Verdict:
        """Advance one second with this measurement and apply the verdict."""
        self.now += 1.0
        loads = {"vl": measured} if measured is not None else {}
        expected = self.adapt.expected_load(loads)
        if expected is None:
            return Verdict.KEEP
        wanted = expected["vl"]
        if not wanted.shares:  # never measured
            wanted = load(wanted.rate)
        best = self.best(wanted)
        now = deployment(self.cells, wanted, self.cells)
        verdict = self.adapt.decide(ScalingSnapshot(loads, now, now, deployment(best, wanted, self.cells)))
        if verdict is not Verdict.KEEP:
            self.cells = best
            self.changes.append((self.now, verdict, best))
            self.adapt.note_plan_change()
        return verdict

    def run(self, seconds: int, measured: ModelLoad | None) -> list[tuple[float, Verdict, Cells]]:
        """Return the changes in ``seconds`` of the same load."""
        before = len(self.changes)
        for _ in range(seconds):
            self.second(measured)
        return self.changes[before:]


def deployment(cells: Cells, wanted: ModelLoad, running: Cells) -> DeploymentCapacity:
    fresh = sum(max(0, want - have) for want, have in zip(cells, running, strict=True))
    return DeploymentCapacity({"vl": cells.serves(wanted)}, sum(cells), fresh * START)


def fewest(rate: float = 20.0) -> House:
    """Return a house planned for ``rate`` with a fifth to spare."""
    house = House(ScalingGoal(gpus=True, headroom=0.2, rate=rate))
    house.cells = house.best(load(rate))
    return house


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def held(adapt: ScalingPolicy, clock: Clock, scene: ScalingSnapshot, seconds: int) -> Verdict:
    """Return the last verdict after ``seconds`` of the same load."""
    verdict = Verdict.KEEP
    for _ in range(seconds):
        clock.now += 1.0
        if adapt.expected_load(scene.load) is not None:
            verdict = adapt.decide(scene)
    return verdict
