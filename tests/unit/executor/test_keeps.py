"""Executors report if they cache results, for routing of equal inputs."""

import pytest

from omnibus.executor.loop import Executor
from omnibus.executor.status import ExecutorIdentity
from tests.unit.executor.arithmetic import LIMIT, Does, Place, put_number, task_name
from tests.unit.sidecar import node as nodes


class Keeper(Does):
    def __init__(self, keeps: bool) -> None:
        super().__init__(put_number)
        self.keeps = keeps


@pytest.mark.parametrize(
    ("runners", "said"),
    [
        ((Does(put_number), Keeper(True)), True),
        ((Does(put_number), Keeper(False)), False),
        ((Does(put_number),), False),
    ],
    ids=["one does", "none does", "nobody says"],
)
async def test_an_executor_keeps_when_one_of_its_runners_does(here: Place, runners: tuple[Does, ...], said: bool):
    runners_by_component = {f"c{index}": runner for index, runner in enumerate(runners)}
    tensors = await nodes.connect_client(here.directory, "a")
    identity = ExecutorIdentity(
        "a", "m", "O", nodes.NODE, {task_name(component): component for component in runners_by_component}, 8
    )

    executor = Executor(identity, runners_by_component, here.bus, tensors, LIMIT)

    assert executor.status().keeps is said
    await tensors.close()
