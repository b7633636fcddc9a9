"""Scripted answers of a simulated model: rule matching, and parsing of the answer token by token."""

import json
from typing import Any, get_args

import pytest

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.sim import Simulation, decode_profile
from omnibus.executor.sim.answers import WHOLE_CALLS, ToolFormatName
from omnibus.executor.sim.engine import KINDS
from omnibus.structured.calls import split_calls
from omnibus_llm.runners.scripted import SCRIPTED_KINDS, ScriptParams, render_answer, write_text
from omnibus_models.tool_calls import find_format
from tests.unit.executor.simulated import THINKER
from tests.unit.jobs import MemoryJob

ANSWERS: list[dict[str, Any]] = [
    {"contains": "Weather", "text": "Let me see.", "calls": [{"name": "weather", "arguments": {"city": 'Pa"r}is'}}]},
    {"contains": "both", "calls": [{"name": "weather", "arguments": {}}, {"name": "clock", "arguments": {"z": [1]}}]},
    {"role": "tool", "contains": "rain", "text": "Take an umbrella."},
    {"contains": "think", "reasoning": "Two and two.", "text": "Four."},
    {"contains": "hello", "text": "Hello, wörld! 🌍"},
]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "clock")]


def make_profile(answers: list[dict[str, Any]] = ANSWERS, name: str = "thinker", **thinker: Any) -> Any:
    part = {**THINKER, "answers": answers, "kind": "prefill" if name == "prefill" else "think", **thinker}
    return decode_profile(json.dumps({"time_scale": 1e-4, "default": {"components": {name: part}}}).encode())


async def ask_thinker(last: dict[str, str], resumed_count: int = 0, part: Any = None, **params: Any) -> MemoryJob:
    """Run a chat that ends in ``last`` and return its job; with ``resumed_count`` tokens it is a second attempt."""
    kinds = {**KINDS, **SCRIPTED_KINDS}
    simulation = Simulation(ExecutorSettings(model="m", family="qwen3"), part or make_profile(), kinds=kinds)
    runner = simulation.make_runner("thinker")
    messages = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "hello"}, last]
    resumes = {"text": {"ids": list(range(resumed_count))}} if resumed_count else {}
    job = MemoryJob({"messages": messages, "params": params}, resumes=resumes)
    await runner.load()
    try:
        await runner.run(job)
    finally:
        await runner.close()
    return job


async def ask_halves(last: dict[str, str], resumed_count: int = 0, part: Any = None, **params: Any) -> MemoryJob:
    """Run the same on two halves and return the decode job. ``start`` is sent as JSON."""
    rules = part or make_profile(name="prefill")
    decode_part = {"step": {"base": 0.1}, "steps": 6}
    decode_rules = decode_profile(
        json.dumps({"time_scale": 1e-4, "default": {"components": {"decode": decode_part}}}).encode()
    )
    simulations = [
        Simulation(ExecutorSettings(model="m", family="qwen3"), each, kinds={**KINDS, **SCRIPTED_KINDS})
        for each in (rules, decode_rules)
    ]
    prefill, decode = simulations[0].make_runner("prefill"), simulations[1].make_runner("decode")
    messages = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "hello"}, last]
    first = MemoryJob({"messages": messages, "params": params})
    resumes = {"text": {"ids": list(range(resumed_count))}} if resumed_count else {}
    for runner in (prefill, decode):
        await runner.load()
    try:
        await prefill.run(first)
        [start], [cache] = (first.outputs[name].items for name in ("start", "cache"))
        start = Item(json.loads(json.dumps(start.data)), None)
        second = MemoryJob({"start": start, "cache": cache, "params": params}, resumes=resumes)
        await decode.run(second)
    finally:
        for runner in (prefill, decode):
            await runner.close()
    return second


def make_user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def read_answer(job: MemoryJob) -> tuple[str, str, list[tuple[str, Any]], str]:
    """Return text, reasoning, calls, and the finish reason."""
    items = job.outputs["text"].items
    texts = ["".join(item.data.get(key, "") for item in items) for key in ("text", "reasoning", "calls")]
    calls = [(name, json.loads(arguments)) for name, arguments in split_calls(texts[2])]
    return texts[0], texts[1], calls, items[-1].data["finish_reason"]


async def test_the_rule_that_fits_the_last_message_is_the_answer():
    assert read_answer(await ask_thinker(make_user_message("say HELLO"))) == ("Hello, wörld! 🌍", "", [], "stop")
    assert read_answer(await ask_thinker(make_user_message("think"))) == ("Four.", "Two and two.", [], "stop")
    assert read_answer(await ask_thinker({"role": "tool", "content": "rain"}))[0] == "Take an umbrella."
    [(name, arguments)] = read_answer(await ask_thinker(make_user_message("the weather"), tools=TOOLS))[2]
    assert (name, arguments) == ("weather", {"city": 'Pa"r}is'})


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("say HELLO", {}),
        ("think", {}),
        ("the weather", {"tools": TOOLS}),
        ("both", {"tools": TOOLS, "tool_choice": "required"}),
        ("hello", {"max_tokens": 2}),
        ("hello", {"stop": ["wör"]}),
    ],
)
async def test_halves_answer_as_the_whole_model_does(text: str, params: dict[str, Any]):
    whole = await ask_thinker(make_user_message(text), **params)

    for resumed_count in (0, 1):
        assert read_answer(await ask_halves(make_user_message(text), resumed_count, **params)) == read_answer(whole)


async def test_halves_refuse_what_a_whole_model_refuses_and_answer_all_else_by_chance():
    with pytest.raises(BadRequest, match="no scripted answer to this message calls a tool"):
        await ask_halves(make_user_message("hello"), tools=TOOLS, tool_choice="required")
    plain = make_profile([], name="prefill")

    assert read_answer(await ask_halves(make_user_message("bye"))) == read_answer(
        await ask_halves(make_user_message("bye"), part=plain)
    )
    count_job = await ask_halves(make_user_message("hello"), count_only=True)
    assert read_answer(count_job)[0] == ""


async def test_calls_of_halves_are_in_the_format_of_their_prefill():
    part = make_profile(
        [each for each in ANSWERS if not (each.get("text") and each.get("calls"))],
        "prefill",
        tool_format="llama3",
        chars=3,
    )

    assert len(read_answer(await ask_halves(make_user_message("both"), part=part, tools=TOOLS))[2]) == 2


async def test_what_no_rule_fits_is_answered_by_chance_as_before():
    part = decode_profile(
        b'{"time_scale": 1e-4, "default": {"components": {"thinker": %s}}}' % json.dumps(THINKER).encode()
    )

    for last in (make_user_message("bye"), {"role": "tool", "content": "hello"}):
        assert read_answer(await ask_thinker(last)) == read_answer(await ask_thinker(last, part=part))


async def test_a_rule_only_gives_what_the_request_permits():
    plain = read_answer(await ask_thinker(make_user_message("bye")))[0]

    assert read_answer(await ask_thinker(make_user_message("weather")))[2] == []  # no tools are offered
    assert read_answer(await ask_thinker(make_user_message("both"), tools=TOOLS[:1]))[2] == []
    assert read_answer(await ask_thinker(make_user_message("both"), tools=TOOLS, parallel_tool_calls=False))[2] == []
    assert read_answer(await ask_thinker(make_user_message("both"), tools=TOOLS, allowed_tools=["clock"]))[2] == []
    assert len(read_answer(await ask_thinker(make_user_message("both"), tools=TOOLS, tool_choice="required"))[2]) == 2
    assert plain
    with pytest.raises(BadRequest, match="no scripted answer to this message calls a tool") as caught:
        await ask_thinker(make_user_message("hello"), tools=TOOLS, tool_choice="required")
    assert caught.value.param == "tool_choice"


async def test_limits_and_stop_strings_hold():
    cut = await ask_thinker(make_user_message("hello"), max_tokens=2)
    stopped_job = await ask_thinker(make_user_message("hello"), stop=["wör"])

    assert read_answer(cut) == ("Hello, w", "", [], "length")
    assert cut.outputs["text"].items[-1].data["usage"]["completion_tokens"] == 2
    assert read_answer(stopped_job) == ("Hello, ", "", [], "stop")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 1000])
@pytest.mark.parametrize("format", get_args(ToolFormatName))
async def test_calls_in_every_format_are_read_wherever_tokens_are_cut(format: str, size: int):
    answers = [{**each, "text": ""} if "calls" in each and format in WHOLE_CALLS else each for each in ANSWERS]
    for number in (0, 1):
        part = make_profile(answers, chars=size, tool_format=format)
        rule = part.default.components["thinker"].answers[number]
        text = "weather" if number == 0 else "both"

        answer = read_answer(await ask_thinker(make_user_message(text), part=part, tools=TOOLS))

        assert answer[2] == [(call.name, call.arguments) for call in rule.calls]
        assert answer[0] == rule.text
        rendering = render_answer(rule, ScriptParams(tools=tuple(TOOLS)), find_format(format), size, None)
        assert rendering.tokens == -(-len(write_text(rule, find_format(format))) // size)


@pytest.mark.parametrize("resumed_count", [1, 9, 20, 400])
async def test_an_answer_that_goes_on_elsewhere_is_the_same(resumed_count: int):
    whole = await ask_thinker(make_user_message("weather"), tools=TOOLS)
    again = await ask_thinker(make_user_message("weather"), tools=TOOLS, resumed_count=resumed_count)

    assert read_answer(again) == read_answer(whole)
    assert again.ids == whole.ids == list(range(len(whole.ids)))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"contains": "x"}, r"an answer needs `text`, `calls` or `reasoning` - at `\$.answers\[0\]`"),
        ({"text": "x", "role": "system"}, r"Invalid enum value 'system' - at `\$.answers\[0\].role`"),
        ({"calls": [{"arguments": {}}]}, r"missing required field `name` - at `\$.answers\[0\].calls\[0\]`"),
        ({"text": "x", "contain": "y"}, r"unknown field `contain` - at `\$.answers\[0\]`"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(rule: dict[str, Any], message: str):
    with pytest.raises(BadRequest, match=f"default, component thinker: .*{message}"):
        make_profile([rule])


def test_answers_and_formats_are_checked_where_they_cannot_be_used():
    with pytest.raises(BadRequest, match="Invalid enum value 'xml' - at `\\$.tool_format`"):
        make_profile(tool_format="xml")
    with pytest.raises(BadRequest, match="calls in the format llama3 answer with `text` or `calls`, not both"):
        make_profile(tool_format="llama3")
    simulation = Simulation(ExecutorSettings(model="m"), make_profile(kind="decode"), kinds={**KINDS, **SCRIPTED_KINDS})
    with pytest.raises(BadRequest, match="`answers` are for thinkers and for prefill, .* not for thinker: decode"):
        simulation.make_runner("thinker")
