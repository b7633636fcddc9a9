"""Search for a recorded invocation's first differing stage and its executors.

Each stage runs on every executor that can run it, in the order of the graph, while all other stages stay the same. The
inputs are therefore equal, and executors whose outputs differ from the reference cause the difference.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec

from omnibus.errors import StageUnavailable
from omnibus.graph import Invocation
from omnibus.recording.records import EndRecord

#: Runs the invocation on these executors, one for each node. Returns the digest of each output by ``<node>.<output>``,
#: or the reason of a failure under ``FAILURE``.
RunRoute = Callable[[tuple[str, ...]], Awaitable[Mapping[str, str]]]
FAILURE = "failure"


class ExecutorOutputs(msgspec.Struct, frozen=True):
    """Outputs of a stage on one executor: equal to the reference in any run, and steady in all.

    ``compared`` counts the outputs with content that were compared with the record or another run. If it is 0, nothing
    is known: ``equal`` only means that no difference was seen.
    """

    executor: str
    equal: bool
    steady: bool = True
    failure: str = ""
    compared: int = 0


class StageComparison(msgspec.Struct, frozen=True):
    """One stage on all executors that can run it. ``reference`` is the source of the compared outputs."""

    node: int
    component: str
    reference: str
    outputs: tuple[ExecutorOutputs, ...]

    @property
    def differs(self) -> bool:
        """True if an executor's outputs differ from the reference, or are unsteady.

        Unsteady outputs count only if those of other executors are steady.
        """
        return any(not each.equal for each in self.outputs) or bool(self._unsteady_executors())

    @property
    def is_compared(self) -> bool:
        """True if the outputs of any executor were compared with others."""
        return any(each.compared for each in self.outputs)

    def find_responsible(self, wrong: bool) -> list[str]:
        """Return the executors that cause the difference.

        They are those that differ from the reference, or, if that is ``wrong``, those that equal it. If all equal it
        sometimes, they are the unsteady ones.
        """
        if not wrong and all(each.equal for each in self.outputs):
            return self._unsteady_executors()
        return [each.executor for each in self.outputs if each.equal is wrong]

    def _unsteady_executors(self) -> list[str]:
        """Return the executors that are not steady; none if no executor is, as the model then causes it."""
        unsteady = [each.executor for each in self.outputs if not each.steady]
        return unsteady if len(unsteady) < len(self.outputs) else []


async def compare_stages(
    invocation: Invocation, end: EndRecord | None, able: Sequence[Sequence[str]], run: RunRoute, runs: int = 1
) -> list[StageComparison]:
    """Compare the stages of ``invocation`` up to the first that differs.

    ``able`` lists the executors of each node. A stage runs ``runs`` times on each executor, or until it differs.
    Recorded outputs are the reference, otherwise those of the recorded executor, or of the first one that can run the
    stage. Raises ``StageUnavailable`` for a node without an executor.
    """
    route = tuple(_base_route(invocation, end, able))
    recorded_digests, base = dict(_recorded_digests(end)), await run(route)
    comparisons: list[StageComparison] = []
    for task in dict.fromkeys(node.task for node in invocation.nodes):
        nodes = [index for index, node in enumerate(invocation.nodes) if node.task == task]
        stage_digests = {key: recorded_digests[key] for key in _keys_of(nodes, recorded_digests)}
        now = {key: base[key] for key in _keys_of(nodes, base)}
        reference = {**now, **stage_digests}
        outputs = []
        for executor in able[nodes[0]]:
            trial_route = tuple(executor if index in nodes else each for index, each in enumerate(route))
            digests = base if trial_route == route else await run(trial_route)
            for _ in range(runs - 1):
                if not _is_equal(reference, digests):
                    break
                digests = await run(trial_route)
            again = digests if _is_equal(reference, digests) else await run(trial_route)
            steady = all(digests.get(key) == again.get(key) for key in (*reference, FAILURE))
            equal = _is_equal(reference, digests) or (not steady and _is_equal(reference, again))
            is_reference = trial_route == route and runs == 1  # the reference is not compared with itself
            compared_count = sum(
                1 for key, digest in reference.items() if digest and (key in stage_digests or not is_reference)
            )
            outputs.append(ExecutorOutputs(executor, equal, steady, digests.get(FAILURE, ""), compared_count))
        reference_name = "the record" if stage_digests else route[nodes[0]]
        comparisons.append(
            StageComparison(nodes[0], invocation.nodes[nodes[0]].component, reference_name, tuple(outputs))
        )
        if comparisons[-1].differs:
            break
    return comparisons


def _base_route(invocation: Invocation, end: EndRecord | None, able: Sequence[Sequence[str]]) -> Iterator[str]:
    recorded_route = (end.route if end is not None else ()) or invocation.route
    for index, executors in enumerate(able):
        if not executors:
            stage = invocation.nodes[index].component
            raise StageUnavailable(f"no live executor can run stage {stage!r}: start one", stage=stage)
        yield recorded_route[index] if recorded_route[index] in executors else executors[0]


def _recorded_digests(end: EndRecord | None) -> Iterator[tuple[str, str]]:
    for one in end.kept if end is not None else ():
        if one.digest:
            yield f"{one.node}.{one.output}", one.digest
    for key, digest in end.outputs.items() if end is not None else ():
        if digest:
            yield key, digest


def _keys_of(nodes: Sequence[int], digests: Mapping[str, str]) -> list[str]:
    return [key for key in digests if key != FAILURE and int(key.partition(".")[0]) in nodes]


def _is_equal(reference: Mapping[str, str], digests: Mapping[str, str]) -> bool:
    return FAILURE not in digests and all(digests.get(key) == digest for key, digest in reference.items())
