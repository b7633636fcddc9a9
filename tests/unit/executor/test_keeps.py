"""Executors report if they cache results, for routing of equal inputs."""

import pytest

from omnibus.executor.identity import ExecutorIdentity
from omnibus.executor.loop import Executor
from tests.unit.executor.arithmetic import LIMIT, Does, Place, number, task
from tests.unit.sidecar import node as nodes


class Keeper(Does):
    def __init__(self, keeps: bool) -> None:
        super().__init__(number)
        self.keeps = keeps


@pytest.mark.parametrize(
    ("runners", "said"),
    [((Does(number), Keeper(True)), True), ((Does(number), Keeper(False)), False), ((Does(number),), False)],
    ids=["one does", "none does", "nobody says"],
)
async def test_an_executor_keeps_when_one_of_its_runners_does(here: Place, runners: tuple[Does, ...], said: bool):
    named = {f"c{index}": runner for index, runner in enumerate(runners)}
    tensors = await nodes.connect(here.directory, "a")
    identity = ExecutorIdentity("a", "m", "O", nodes.NODE, {task(component): component for component in named}, 8)

    made = Executor(identity, named, here.bus, tensors, LIMIT)

    assert made.status().keeps is said
    await tensors.close()
