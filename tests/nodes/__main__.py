"""Thousands of requests over isolated nodes under faults.

    python -m tests.nodes --requests 10000 --seed 7

Engines are those of ``tests.nodes.summing``, so every byte that crosses is checked. Gateway, planner, executors, bus,
store, sidecars and cables are real. Every stage has two executors, and every node a sidecar. Meanwhile faults cut
cables or make them slow or deaf in one direction. They also freeze and kill sidecars, and kill executors: see
``tests.nodes.soak``.

The exit status is 0 under three conditions. Each request got the right answer or a typed error. None took longer than
its deadline. No node has leftovers. The same seed draws the same requests and faults. Needs root.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.bench import bodies
from tests.nodes.namespaces import Node, Switch, missing_reason
from tests.nodes.soak import ANSWERED, FaultDrawer, SoakLoad, load_again
from tests.nodes.summing import SummedRequests, declared_model
from tests.nodes.system import NamespaceSystem, network_of, node_settings

_REPLICAS = 2
_DEADLINE_SECONDS, _HANG_SECONDS = 20.0, 30.0
_SLOW_RATE = "2mbit"  # the largest tensor then takes 2.5 s
#: Requests without faults, before descriptors are counted and after the last fault.
_CALM_REQUESTS = 100
#: Descriptors that a process may have more afterwards, for connections are made when they are needed.
_MORE_DESCRIPTORS = 16
_SETTLE_SECONDS = 10.0
_SHOWN_FAULTS, _SHOWN_LOG = 20, 20_000


@contextlib.contextmanager
def run_nodes(nodes: int) -> Iterator[tuple[NamespaceSystem, list[Node]]]:
    """Run the system over ``nodes``; yield it and its other nodes.

    Fails if something is left of it.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="omnibus-nodes-")))
        switch = stack.enter_context(Switch())
        other_nodes = [stack.enter_context(switch.add_node(f"n{index}")) for index in range(1, nodes)]
        settings = {
            **node_settings(switch, other_nodes),
            "OMNIBUS_EXECUTOR_ENGINE": "tests.nodes.summing:engine",
            "OMNIBUS_GATEWAY_DEADLINE": f"{_DEADLINE_SECONDS:g}",
            "OMNIBUS_GATEWAY_QUARANTINE": "0",
            "OMNIBUS_GATEWAY_RECORD": "digest",
            "OMNIBUS_SIDECAR_ARENA_MIB": "128",
        }
        models = {bodies.IMAGE_MODEL: declared_model(_REPLICAS)}
        system = NamespaceSystem(directory, models, settings, ("--nodes", str(nodes)))
        with network_of(switch.first_process):
            try:
                system.start()
                yield system, other_nodes
            except BaseException:
                print(system.log[-_SHOWN_LOG:], file=sys.stderr)
                raise
            finally:
                leftovers = system.stop()
        if leftovers:
            raise AssertionError(f"left behind: {leftovers}")


async def run_requests(system: NamespaceSystem, other_nodes: list[Node], options: argparse.Namespace) -> list[str]:
    """Send the requests; return failures in words."""
    load = SoakLoad(system, SummedRequests(options.seed), at_once=options.at_once, hang_seconds=_HANG_SECONDS)
    await load_again(load, _CALM_REQUESTS)
    await system.ledger_is_empty(_SETTLE_SECONDS)
    descriptors = _count_descriptors(system)
    load.outcomes.clear()
    faults = FaultDrawer(system, other_nodes, seed=options.seed, slow_rate=_SLOW_RATE)
    began, bytes_before = time.monotonic(), _received_bytes(other_nodes)
    breaking = asyncio.create_task(faults.run())
    try:
        await load.run(options.requests, first=_CALM_REQUESTS)
    finally:
        breaking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await breaking
    outcomes, seconds = dict(load.outcomes), time.monotonic() - began
    megabytes = (_received_bytes(other_nodes) - bytes_before) / 1e6
    print(f"{sum(outcomes.values())} of {options.requests} requests in {seconds:.0f} s: {outcomes}")
    print(f"faults: {dict(faults.done)}; {megabytes:.0f} MB crossed; the longest took {load.longest_seconds:.1f} s")
    await system.whole()
    await load_again(load, _CALM_REQUESTS)
    await system.ledger_is_empty(_SETTLE_SECONDS)
    growth = {
        name: (before, now)
        for name, now in _count_descriptors(system).items()
        if now > (before := descriptors.get(name, now)) + _MORE_DESCRIPTORS
    }
    refusals = [] if outcomes.get(ANSWERED, 0) > options.requests / 2 else ["more than half were refused"]
    return [
        *load.faults,
        *refusals,
        *(f"{name}: descriptors before and after: {each}" for name, each in growth.items()),
    ]


def _received_bytes(nodes: list[Node]) -> int:
    return sum(node.received_bytes() for node in nodes)


def _count_descriptors(system: NamespaceSystem) -> dict[str, int]:
    """Count the open descriptors of each process, by id and command."""
    counts = {}
    for process in system.processes():
        with contextlib.suppress(psutil.Error):
            counts[f"{process.pid} {' '.join(process.cmdline()[-3:])}"] = process.num_fds()
    return counts


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.nodes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--at-once", type=int, default=12, help="requests at a time")
    options = parser.parse_args(arguments)
    if options.nodes < 3:
        parser.error("faults between two nodes need a third one, the gateway's: --nodes is at least 3")
    options.seed = random.randrange(2**31) if options.seed is None else options.seed
    return options


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    if reason := missing_reason():
        print(reason, file=sys.stderr)
        return 2
    print(f"seed {options.seed}", flush=True)
    with run_nodes(options.nodes) as (system, other_nodes):
        wrong = asyncio.run(run_requests(system, other_nodes, options))
        if wrong:
            print(system.log[-_SHOWN_LOG:], file=sys.stderr)
    for each in wrong[:_SHOWN_FAULTS]:
        print(each)
    print(f"wrong: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
