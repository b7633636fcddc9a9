"""Record and replay: the graph that comes out, and every way in which a replay may leave it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from omnibus.errors import BadRequest, PlaceholderError, ReplayMismatch
from omnibus.graph import HANDLE, ref
from omnibus.task import Placeholder, Recording, record, replay
from tests.unit.task.tasks import ONE, TWO, Both, Result, StepInput


def pair(request: Any) -> Any:
    found = ONE.invoke(StepInput(a=request))
    return TWO.invoke(StepInput(a=found.y, many=[found.said, 1])).said


def answers(recording: Recording) -> dict[tuple[int, str], Result]:
    return {key: Result(*key) for key in recording.outputs}


def again(invoke: Callable[[Any], Any], request: Any, recording: Recording) -> Any:
    return replay(invoke, request, recording.nodes, answers(recording))


# Record


def test_calls_become_nodes_in_their_order():
    recording = record(pair, {"q": [1, "x"]})

    one, two = recording.nodes
    assert (one.task, one.component, one.inputs) == (
        "step-m-one-1",
        "one",
        {"a": {"q": [1, "x"]}, "text": "", "many": []},
    )
    assert two.inputs == {"a": ref(0, "y"), "text": "", "many": [ref(0, "said"), 1]}
    assert recording.outputs == ((1, "said"),)


def test_a_node_lists_what_it_uses_once():
    def twice(_: Any) -> Any:
        found = ONE.invoke(StepInput())
        return TWO.invoke(StepInput(a=found.y, b={"deep": [found.y]}, many=[found.said])).y

    assert record(twice, None).nodes[1].uses == ((0, "y"), (0, "said"))


def test_inputs_that_are_not_set_are_left_out():
    assert "b" not in record(pair, 1).nodes[0].inputs


class Row(NamedTuple):
    text: Any
    sound: Any


@dataclass
class Answer:
    text: Any
    more: list[Any] = field(default_factory=list)


def shaped(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda _: wrap(ONE.invoke(StepInput()))


@pytest.mark.parametrize(
    ("wrap", "outputs"),
    [
        (lambda found: found.said, ((0, "said"),)),
        (lambda found: [found.y, found.said], ((0, "y"), (0, "said"))),
        (lambda found: {"a": (found.said, "literal")}, ((0, "said"),)),
        (lambda found: Row(found.said, None), ((0, "said"),)),
        (lambda found: Answer(found.said, [found.y, found.said]), ((0, "said"), (0, "y"))),
        (lambda found: None, ()),
    ],
    ids=["bare", "list", "dict", "tuple", "object", "nothing"],
)
def test_returned_placeholders_are_the_outputs(wrap: Callable[[Any], Any], outputs: tuple[tuple[int, str], ...]):
    assert record(shaped(wrap), None).outputs == outputs


def test_a_task_whose_outputs_nobody_uses_is_still_run():
    def wasteful(_: Any) -> Any:
        ONE.invoke(StepInput())
        return TWO.invoke(StepInput()).said

    recording = record(wasteful, None)

    assert [node.component for node in recording.nodes] == ["one", "two"]
    assert recording.outputs == ((1, "said"),)


def test_a_composite_that_calls_nothing_is_refused():
    with pytest.raises(BadRequest, match="no unit task"):
        record(lambda request: request, 1)


def test_an_unknown_output_names_those_that_there_are():
    with pytest.raises(AttributeError, match="y, said"):
        record(lambda _: ONE.invoke(StepInput()).colour, None)


def test_composites_may_nest():
    inner = Both()

    def outer(request: Any) -> Any:
        return [inner.invoke(request)["answer"], inner.invoke(request)["answer"]]

    recording = record(outer, 1)

    assert [node.component for node in recording.nodes] == ["one", "two", "one", "two"]
    assert recording.nodes[3].inputs["a"] == ref(2, "y")
    assert recording.outputs == ((1, "said"), (3, "said"))


def test_a_unit_task_outside_of_a_composite_is_refused():
    with pytest.raises(PlaceholderError, match="outside of a composite task"):
        ONE.invoke(StepInput())


def test_a_failed_record_leaves_no_session_behind():
    def broken(_: Any) -> Any:
        ONE.invoke(StepInput())
        raise ValueError

    with pytest.raises(ValueError):
        record(broken, None)
    with pytest.raises(PlaceholderError):
        ONE.invoke(StepInput())


def test_looking_at_a_result_while_recording_is_refused():
    with pytest.raises(PlaceholderError, match="'said' of step-m-one-1"):
        record(lambda _: TWO.invoke(StepInput(text="a" if ONE.invoke(StepInput()).said else "b")), None)


def test_handles_do_not_change_digests_but_content_does():
    def at(offset: int, content: str) -> str:
        media = {HANDLE: {"offset": offset}, "sha256": content}
        return record(lambda request: ONE.invoke(StepInput(a=request)).y, media).nodes[0].digest

    assert at(1, "aa") == at(2, "aa")
    assert at(1, "aa") != at(1, "bb")


# Replay


def test_replay_returns_the_answer_with_its_results():
    recording = record(pair, 1)

    answer = again(pair, 1, recording)

    assert answer.origin == (1, "said")


def test_tensors_that_the_gateway_did_not_ask_for_stay_placeholders():
    seen: list[Any] = []

    def spying(request: Any) -> Any:
        found = ONE.invoke(StepInput(a=request))
        seen.append(found.y)
        return found.said

    again(spying, 1, record(spying, 1))

    assert type(seen[-1]) is Placeholder


def test_a_result_may_be_an_input_as_well_as_an_answer():
    def shown(request: Any) -> Any:
        said = ONE.invoke(StepInput(a=request)).said
        return [said, TWO.invoke(StepInput(text=said)).said]

    recording = record(shown, 1)

    assert [result.origin for result in again(shown, 1, recording)] == [(0, "said"), (1, "said")]


def test_a_replay_may_be_replayed():
    recording = record(pair, 1)

    assert again(pair, 1, recording).origin == again(pair, 1, recording).origin


def one_then_two(_: Any) -> Any:
    ONE.invoke(StepInput())
    return TWO.invoke(StepInput()).said


def two_then_one(_: Any) -> Any:
    TWO.invoke(StepInput())
    return ONE.invoke(StepInput()).said


def only_one(_: Any) -> Any:
    return ONE.invoke(StepInput()).said


MISMATCHES: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "another order": (one_then_two, two_then_one, 0, 0, "call 0 was step-m-one-1 when recorded and is step-m-two-1"),
    "more calls": (only_one, one_then_two, 0, 0, "call 1 of step-m-two-1 is not in the record"),
    "fewer calls": (one_then_two, only_one, 0, 0, "made 1 calls, the record has 2"),
    "other inputs": (pair, pair, {"q": 1}, {"q": 2}, "call 0 of step-m-one-1 got other inputs on replay: a"),
    "an input less": (pair, pair, 1, None, "other inputs on replay: a"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "asked", "now", "message"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_a_replay_that_leaves_the_record_is_refused(before: Any, after: Any, asked: Any, now: Any, message: str):
    recording = record(before, asked)

    with pytest.raises(ReplayMismatch, match=message):
        again(after, now, recording)


def test_another_task_of_the_same_component_is_refused():
    wide = ONE.model_copy(update={"width": 2})
    recording = record(lambda _: ONE.invoke(StepInput()).y, None)

    with pytest.raises(ReplayMismatch, match="step-m-one-2"):
        again(lambda _: wide.invoke(StepInput()).y, None, recording)


def test_a_reference_to_another_output_is_refused():
    def uses(output: str) -> Callable[[Any], Any]:
        return lambda _: TWO.invoke(StepInput(a=getattr(ONE.invoke(StepInput()), output))).said

    with pytest.raises(ReplayMismatch, match="call 1 of step-m-two-1 got other inputs on replay: a"):
        again(uses("said"), None, record(uses("y"), None))


def test_a_random_branch_is_caught():
    coin = iter([True, False])

    def random(_: Any) -> Any:
        return (ONE if next(coin) else TWO).invoke(StepInput()).said

    recording = record(random, None)

    with pytest.raises(ReplayMismatch):
        again(random, None, recording)


def test_a_clock_in_an_input_is_caught():
    clock = iter([1.0, 2.0])

    def timed(_: Any) -> Any:
        return ONE.invoke(StepInput(a=next(clock))).said

    recording = record(timed, None)

    with pytest.raises(ReplayMismatch, match="other inputs"):
        again(timed, None, recording)
