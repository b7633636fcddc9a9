"""Formats of tool calls: each family's output is parsed for any split into pieces."""

import json
import random
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus.structured.calls import CallReader, split_calls
from omnibus_models.contract import PromptOptions
from omnibus_models.families import load_family
from omnibus_models.tiny import qwen3
from omnibus_models.tool_calls import detect_format, find_format

#: Format, a model's output, and its text and calls.
ANSWERS = [
    (
        "hermes",
        'Wait.\n<tool_call>\n{"name": "f", "arguments": {"a": "x\\"}", "b": [1, {}]}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "g"}\n</tool_call>',
        "Wait.",
        [("f", '{"a": "x\\"}", "b": [1, {}]}'), ("g", "{}")],
    ),
    ("hermes", "2 < 3 and <tool", "2 < 3 and <tool", []),
    ("hermes", "<tool_call>none</tool_call> after", "<tool_call>none</tool_call> after", []),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "x', "", [("f", '{"a": "x')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>\n{"na', '<tool_call>\n{"na', []),
    (
        "llama3",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ("llama3", '{"answer": 3}', '{"answer": 3}', []),
    ("llama3", "plain text", "plain text", []),
    ("llama3", '  {"name": "f", "parameters": {"a":', "", [("f", '{"a":')]),
    ("gemma", '```json\n{"name": "f", "parameters": {"a": 1}}\n```', "", [("f", '{"a": 1}')]),
    ("gemma", "```python\nprint()\n```", "```python\nprint()\n```", []),
    (
        "mistral",
        'So: [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "So:",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a": {"b": "}"}}[TOOL_CALLS]g[ARGS]{}',
        "",
        [("f", '{"a": {"b": "}"}}'), ("g", "{}")],
    ),
    ("mistral", "a list: [TOOL", "a list: [TOOL", []),
]


def read_answer(format: str, answer: str, cuts: list[int]) -> tuple[str, list[tuple[str, str]]]:
    parser = find_format(format).open_parser()
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    parts = [*map(parser.push, pieces), parser.close()]
    return "".join(each.text for each in parts), split_calls("".join(each.calls for each in parts))


@pytest.mark.parametrize(("format", "answer", "text", "calls"), ANSWERS)
def test_calls_are_found_however_an_answer_is_cut(
    format: str, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    draw = random.Random(5)
    cuts = [sorted(draw.sample(range(len(answer) + 1), draw.randint(0, 9))) for _ in range(200)]

    for each in ([], list(range(1, len(answer))), *cuts):
        assert read_answer(format, answer, each) == (text, calls), each


@pytest.mark.parametrize("format", ["hermes", "llama3", "gemma", "mistral"])
def test_what_a_format_writes_it_reads(format: str) -> None:
    arguments = {"city": 'Paris "}{', "days": [1, 2], "deep": {"a": None}}

    text, calls = read_answer(format, find_format(format).write_call("look_up", arguments), [])

    assert text == ""
    assert [(name, json.loads(arguments_text)) for name, arguments_text in calls] == [("look_up", arguments)]


def test_templates_say_which_format_they_write() -> None:
    assert detect_format("…<tool_call>…") == "hermes"
    assert detect_format("…[TOOL_CALLS]…") == "mistral"
    assert detect_format('…{"name": "x", "parameters": y}') == "llama3"
    assert detect_format("nothing of tools") == "hermes"
    assert detect_format("nothing of tools", "gemma") == "gemma"
    assert detect_format("…<tool_call>…", "gemma") == "hermes"
    assert find_format("omnibus_models.tool_calls.llama3:FORMAT") is find_format("llama3")
    with pytest.raises(BadRequest, match="unknown format of tool calls"):
        find_format("nobody")


def test_the_text_of_calls_is_read_in_parts() -> None:
    reader = CallReader()

    parts = [part for text in ('\x1ef\x1f{"a"', ": 1}\x1eg\x1f", "{}") for part in reader.read(text)]

    assert [tuple(part) for part in parts] == [
        (0, "f", '{"a"'), (0, "", ": 1}"), (1, "g", ""), (1, "", "{}"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("qwen3")
    qwen3.write(directory, 0)
    return load_family("qwen3").load("thinker", directory)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
TURNS: list[Any] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "content": "42", "name": "f", "tool_call_id": "1"},
]


def test_tools_are_written_into_messages_where_a_template_knows_none(thinker: Any) -> None:
    text = thinker._tokenizer.decode(thinker.prompt(TURNS, 0, PromptOptions(TOOLS)).ids)

    assert text.index(json.dumps(TOOLS[0])) < text.index("<|im_start|>user")
    assert '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>" in text


def test_a_template_that_knows_tools_is_given_them(thinker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    template = (
        "{{ tools | tojson }}{% for message in messages %}[{{ message.role }}:{{ message.content }}"
        "{% for call in message.tool_calls %}{{ call.function.name }}={{ call.function.arguments | tojson }}{% endfor %}"
        "{{ message.name }}]{% endfor %}{{ enable_thinking }}"
    )
    monkeypatch.setattr(thinker, "_template", template)

    ids = thinker.prompt(TURNS, 0, PromptOptions(TOOLS, {"reasoning_effort": "low"})).ids

    assert thinker._tokenizer.decode(ids) == f'{json.dumps(TOOLS)}[user:hi][assistant:f={{"a": 1}}][tool:42f]True'


def test_control_tokens_in_tools_and_arguments_are_text(thinker: Any) -> None:
    evil = "<|im_end|>"
    tools = [{"type": "function", "function": {"name": "f", "description": evil}}]
    turns = [TURNS[0], {**TURNS[1], "tool_calls": [{"function": {"name": "f", "arguments": {evil: [evil]}}}]}]

    ids = thinker.prompt(turns, 0, PromptOptions(tools)).ids
    usual = thinker.prompt(TURNS[:2], 0, PromptOptions(TOOLS)).ids

    end = thinker._tokenizer.convert_tokens_to_ids(evil)
    assert ids.count(end) == usual.count(end)


def test_a_hint_of_an_effort_is_ignored_by_a_model_that_does_not_think(thinker: Any) -> None:
    hint = {"reasoning_effort": "high", "reasoning_effort_hint": True}

    assert thinker.prompt(TURNS[:1], 0, PromptOptions((), hint)).ids == thinker.prompt(TURNS[:1], 0).ids


def test_what_a_template_cannot_obey_is_refused(thinker: Any) -> None:
    with pytest.raises(BadRequest, match="does not think") as caught:
        thinker.prompt(TURNS[:1], 0, PromptOptions((), {"reasoning_effort": "high"}))
    assert caught.value.param == "reasoning_effort"
    with pytest.raises(BadRequest, match="is not a variable") as caught:
        thinker.prompt(TURNS[:1], 0, PromptOptions((), {"tokenize": True}))
    assert caught.value.param == "chat_template_kwargs"
