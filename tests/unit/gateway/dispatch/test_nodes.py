"""Invocations on several nodes: all nodes receive the end, and unreachable nodes are avoided."""

from typing import Any

from omnibus.bus import Delivery, messages, subjects
from omnibus.bus.messages import InvocationEnd, NodeFailed
from omnibus.errors import ProblemDetails
from tests.unit.gateway.world import DispatcherWorld, Puppet, finish_work
from tests.unit.sidecar.node import wait_until


async def add_puppets(there: DispatcherWorld, *places: tuple[str, str, str]) -> list[Puppet]:
    """Add executors with id, option and node to the gateway's view."""
    puppets = []
    for id, option, node in places:
        puppet = await there.puppet(id, option)
        puppet.node = node
        puppet.say()
        puppets.append(puppet)
    await wait_until(lambda: all(there.members.get(each.id).status.node == each.node for each in puppets))
    return puppets


async def ends_at(there: DispatcherWorld, node: str) -> list[InvocationEnd]:
    """Return a list that collects the ends sent to ``node``."""
    ends: list[InvocationEnd] = []

    def record_end(delivery: Delivery) -> None:
        ends.append(messages.decode_end(delivery.data))

    await there.bus.subscribe(subjects.node_subject(node), record_end)
    return ends


def make_problem(node: str, executor: str) -> ProblemDetails:
    return ProblemDetails("node_unreachable", f"node {node!r} is unreachable", "thinker", executor, node=node)


async def test_the_end_is_sent_to_every_other_node_that_was_used(there: DispatcherWorld):
    vision, thinker = await add_puppets(there, ("e", "E", "n2"), ("l", "L", "n3"))
    second, third, own = [await ends_at(there, node) for node in ("n2", "n3", "n1")]
    running = there.submit()
    await there.turn()

    assert await finish_work(there, running, vision, thinker, "fine") == ["fine"]
    await there.turn()

    assert [end.inv for end in second] == [end.inv for end in third] == [running.id]
    assert own == []  # by its sidecar's own socket


async def test_what_cannot_be_pulled_from_a_node_runs_again_without_its_executors(there: DispatcherWorld):
    _, thinker = await add_puppets(there, ("e", "E", "n2"), ("l", "L", "n1"))
    running = there.submit()
    await there.turn()
    (other,) = await add_puppets(there, ("e2", "E", "n1"))

    thinker.reply(NodeFailed(running.id, 1, make_problem("n2", "l")))

    again = await there.sent(other)
    assert (again.attempt, again.route) == (1, ("e2", "l"))


async def test_where_all_producers_are_on_that_node_the_reader_moves_to_another(there: DispatcherWorld):
    _, thinker = await add_puppets(there, ("e", "E", "n2"), ("l", "L", "n1"))
    running = there.submit()
    await there.turn()
    (near,) = await add_puppets(there, ("l2", "L", "n2"))

    thinker.reply(NodeFailed(running.id, 1, make_problem("n2", "l")))

    again = await there.sent(near)
    assert (again.attempt, again.route) == (1, ("e", "l2"))


async def test_without_another_way_the_error_names_the_node(there: DispatcherWorld):
    _, thinker = await add_puppets(there, ("e", "E", "n2"), ("l", "L", "n1"))
    running = there.submit()
    await there.turn()

    thinker.reply(NodeFailed(running.id, 1, make_problem("n2", "l")))
    await there.turn()

    problem: Any = running.failure.to_problem() if running.failure is not None else None
    assert (problem.code, problem.node) == ("node_unreachable", "n2")
