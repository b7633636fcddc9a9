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


def profile(answers: list[dict[str, Any]] = ANSWERS, name: str = "thinker", **thinker: Any) -> Any:
    part = {**THINKER, "answers": answers, "kind": "prefill" if name == "prefill" else "think", **thinker}
    return decode_profile(json.dumps({"time_scale": 1e-4, "default": {"components": {name: part}}}).encode())


async def ask(last: dict[str, str], resumed: int = 0, part: Any = None, **params: Any) -> MemoryJob:
    """Run a chat that ends in ``last`` and return its job; with ``resumed`` tokens it is a second attempt."""
    kinds = {**KINDS, **SCRIPTED_KINDS}
    made = Simulation(ExecutorSettings(model="m", family="qwen3"), part or profile(), kinds=kinds)
    runner = made.make_runner("thinker")
    messages = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "hello"}, last]
    resumes = {"text": {"ids": list(range(resumed))}} if resumed else {}
    job = MemoryJob({"messages": messages, "params": params}, resumes=resumes)
    await runner.load()
    try:
        await runner.run(job)
    finally:
        await runner.close()
    return job


async def ask_halves(last: dict[str, str], resumed: int = 0, part: Any = None, **params: Any) -> MemoryJob:
    """Run the same on two halves and return the decode job. ``start`` is sent as JSON."""
    rules = part or profile(name="prefill")
    written = {"step": {"base": 0.1}, "steps": 6}
    given = decode_profile(json.dumps({"time_scale": 1e-4, "default": {"components": {"decode": written}}}).encode())
    made = [
        Simulation(ExecutorSettings(model="m", family="qwen3"), each, kinds={**KINDS, **SCRIPTED_KINDS})
        for each in (rules, given)
    ]
    prefill, decode = made[0].make_runner("prefill"), made[1].make_runner("decode")
    messages = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "hello"}, last]
    first = MemoryJob({"messages": messages, "params": params})
    resumes = {"text": {"ids": list(range(resumed))}} if resumed else {}
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


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(job: MemoryJob) -> tuple[str, str, list[tuple[str, Any]], str]:
    """Return text, reasoning, calls, and the finish reason."""
    items = job.outputs["text"].items
    texts = ["".join(item.data.get(key, "") for item in items) for key in ("text", "reasoning", "calls")]
    calls = [(name, json.loads(arguments)) for name, arguments in split_calls(texts[2])]
    return texts[0], texts[1], calls, items[-1].data["finish_reason"]


async def test_the_rule_that_fits_the_last_message_is_the_answer():
    assert said(await ask(user("say HELLO"))) == ("Hello, wörld! 🌍", "", [], "stop")
    assert said(await ask(user("think"))) == ("Four.", "Two and two.", [], "stop")
    assert said(await ask({"role": "tool", "content": "rain"}))[0] == "Take an umbrella."
    [(name, arguments)] = said(await ask(user("the weather"), tools=TOOLS))[2]
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
    whole = await ask(user(text), **params)

    for resumed in (0, 1):
        assert said(await ask_halves(user(text), resumed, **params)) == said(whole)


async def test_halves_refuse_what_a_whole_model_refuses_and_answer_all_else_by_chance():
    with pytest.raises(BadRequest, match="no scripted answer to this message calls a tool"):
        await ask_halves(user("hello"), tools=TOOLS, tool_choice="required")
    plain = profile([], name="prefill")

    assert said(await ask_halves(user("bye"))) == said(await ask_halves(user("bye"), part=plain))
    counted = await ask_halves(user("hello"), count_only=True)
    assert said(counted)[0] == ""


async def test_calls_of_halves_are_in_the_format_of_their_prefill():
    part = profile(
        [each for each in ANSWERS if not (each.get("text") and each.get("calls"))],
        "prefill",
        tool_format="llama3",
        chars=3,
    )

    assert len(said(await ask_halves(user("both"), part=part, tools=TOOLS))[2]) == 2


async def test_what_no_rule_fits_is_answered_by_chance_as_before():
    part = decode_profile(
        b'{"time_scale": 1e-4, "default": {"components": {"thinker": %s}}}' % json.dumps(THINKER).encode()
    )

    for last in (user("bye"), {"role": "tool", "content": "hello"}):
        assert said(await ask(last)) == said(await ask(last, part=part))


async def test_a_rule_only_gives_what_the_request_permits():
    plain = said(await ask(user("bye")))[0]

    assert said(await ask(user("weather")))[2] == []  # no tools are offered
    assert said(await ask(user("both"), tools=TOOLS[:1]))[2] == []
    assert said(await ask(user("both"), tools=TOOLS, parallel_tool_calls=False))[2] == []
    assert said(await ask(user("both"), tools=TOOLS, allowed_tools=["clock"]))[2] == []
    assert len(said(await ask(user("both"), tools=TOOLS, tool_choice="required"))[2]) == 2
    assert plain
    with pytest.raises(BadRequest, match="no scripted answer to this message calls a tool") as caught:
        await ask(user("hello"), tools=TOOLS, tool_choice="required")
    assert caught.value.param == "tool_choice"


async def test_limits_and_stop_strings_hold():
    cut = await ask(user("hello"), max_tokens=2)
    stopped = await ask(user("hello"), stop=["wör"])

    assert said(cut) == ("Hello, w", "", [], "length")
    assert cut.outputs["text"].items[-1].data["usage"]["completion_tokens"] == 2
    assert said(stopped) == ("Hello, ", "", [], "stop")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 1000])
@pytest.mark.parametrize("format", get_args(ToolFormatName))
async def test_calls_in_every_format_are_read_wherever_tokens_are_cut(format: str, size: int):
    answers = [{**each, "text": ""} if "calls" in each and format in WHOLE_CALLS else each for each in ANSWERS]
    for number in (0, 1):
        part = profile(answers, chars=size, tool_format=format)
        rule = part.default.components["thinker"].answers[number]
        text = "weather" if number == 0 else "both"

        found = said(await ask(user(text), part=part, tools=TOOLS))

        assert found[2] == [(call.name, call.arguments) for call in rule.calls]
        assert found[0] == rule.text
        made = render_answer(rule, ScriptParams(tools=tuple(TOOLS)), find_format(format), size, None)
        assert made.tokens == -(-len(write_text(rule, find_format(format))) // size)


@pytest.mark.parametrize("resumed", [1, 9, 20, 400])
async def test_an_answer_that_goes_on_elsewhere_is_the_same(resumed: int):
    whole = await ask(user("weather"), tools=TOOLS)
    again = await ask(user("weather"), tools=TOOLS, resumed=resumed)

    assert said(again) == said(whole)
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
        profile([rule])


def test_answers_and_formats_are_checked_where_they_cannot_be_used():
    with pytest.raises(BadRequest, match="Invalid enum value 'xml' - at `\\$.tool_format`"):
        profile(tool_format="xml")
    with pytest.raises(BadRequest, match="calls in the format llama3 answer with `text` or `calls`, not both"):
        profile(tool_format="llama3")
    made = Simulation(ExecutorSettings(model="m"), profile(kind="decode"), kinds={**KINDS, **SCRIPTED_KINDS})
    with pytest.raises(BadRequest, match="`answers` are for thinkers and for prefill, .* not for thinker: decode"):
        made.make_runner("thinker")
