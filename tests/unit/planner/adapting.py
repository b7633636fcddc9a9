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


def make_load(rate: float, image_share: float = 0.5, tokens: float = 100.0) -> ModelLoad:
    words = {"completion_tokens": tokens}
    return ModelLoad(rate, {SEEN: image_share, TEXT: 1 - image_share}, {SEEN: words, TEXT: words})


class Cells(NamedTuple):
    """Replicas of an encoder and of a thinker."""

    encoders: int
    thinkers: int

    def serves(self, load: ModelLoad) -> float:
        image_share, tokens = load.shares[SEEN], load.quantities[TEXT]["completion_tokens"]
        image = self.encoders / (image_share * IMAGE) if image_share else float("inf")
        return min(image, self.thinkers / (tokens * TOKEN))


ALL = [Cells(e, n - e) for n in range(2, GPUS + 1) for e in range(1, n)]


class AdaptedDeployment:
    """A model that is deployed and adapted, on a test clock."""

    def __init__(self, goal: ScalingGoal | None = None, cells: Cells | None = None) -> None:
        self.now = 0.0
        self.goal = goal or ScalingGoal()
        self.cells = cells or Cells(4, 4)
        self.changes: list[tuple[float, Verdict, Cells]] = []
        self.adapt = ScalingPolicy({"vl": self.goal}, RULES, START, lambda: self.now)

    def best(self, target: ModelLoad) -> Cells:
        """Return the fewest replicas for the rate and its headroom. If none suffice, returns those that serve most."""
        if self.goal.gpus:
            rate = target.rate * (1 + self.goal.headroom)
            return next((cells for cells in ALL if cells.serves(target) >= rate), self._most(target))
        return self._most(target)

    def _most(self, target: ModelLoad) -> Cells:
        return max(ALL, key=lambda cells: cells.serves(target))

    def second(self, measurement: ModelLoad | None) -> Verdict:
        """Advance one second with this measurement and apply the verdict."""
        self.now += 1.0
        loads = {"vl": measurement} if measurement is not None else {}
        expected_loads = self.adapt.expected_load(loads)
        if expected_loads is None:
            return Verdict.KEEP
        target = expected_loads["vl"]
        if not target.shares:  # never measured
            target = make_load(target.rate)
        best = self.best(target)
        now = make_deployment(self.cells, target, self.cells)
        verdict = self.adapt.decide(ScalingSnapshot(loads, now, now, make_deployment(best, target, self.cells)))
        if verdict is not Verdict.KEEP:
            self.cells = best
            self.changes.append((self.now, verdict, best))
            self.adapt.note_plan_change()
        return verdict

    def run(self, seconds: int, measurement: ModelLoad | None) -> list[tuple[float, Verdict, Cells]]:
        """Return the changes in ``seconds`` of the same load."""
        before = len(self.changes)
        for _ in range(seconds):
            self.second(measurement)
        return self.changes[before:]


def make_deployment(cells: Cells, target: ModelLoad, running: Cells) -> DeploymentCapacity:
    fresh = sum(max(0, want - have) for want, have in zip(cells, running, strict=True))
    return DeploymentCapacity({"vl": cells.serves(target)}, sum(cells), fresh * START)


def plan_fewest(rate: float = 20.0) -> AdaptedDeployment:
    """Return a house planned for ``rate`` with a fifth to spare."""
    house = AdaptedDeployment(ScalingGoal(gpus=True, headroom=0.2, rate=rate))
    house.cells = house.best(make_load(rate))
    return house


class AdaptationClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def hold_verdict(adapt: ScalingPolicy, clock: AdaptationClock, scene: ScalingSnapshot, seconds: int) -> Verdict:
    """Return the last verdict after ``seconds`` of the same load."""
    verdict = Verdict.KEEP
    for _ in range(seconds):
        clock.now += 1.0
        if adapt.expected_load(scene.load) is not None:
            verdict = adapt.decide(scene)
    return verdict
