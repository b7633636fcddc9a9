"""Formats of tool calls: what models of a family write is read, however it is cut into pieces."""

import json
import random

import pytest

from omnibus.errors import BadRequest
from omnibus.structured.calls import CallReader, split_calls
from omnibus_models.tool_calls import detect_format, find_format

#: Format, what a model writes, and what of it is text and which calls are in it.
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


def read(format: str, answer: str, cuts: list[int]) -> tuple[str, list[tuple[str, str]]]:
    parser = find_format(format).open_parser()
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    parsed = [*map(parser.push, pieces), parser.close()]
    return "".join(each.text for each in parsed), split_calls("".join(each.calls for each in parsed))


@pytest.mark.parametrize(("format", "answer", "text", "calls"), ANSWERS)
def test_calls_are_found_however_an_answer_is_cut(
    format: str, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    draw = random.Random(5)
    cuts = [sorted(draw.sample(range(len(answer) + 1), draw.randint(0, 9))) for _ in range(200)]

    for each in ([], list(range(1, len(answer))), *cuts):
        assert read(format, answer, each) == (text, calls), each


@pytest.mark.parametrize("format", ["hermes", "llama3", "gemma", "mistral"])
def test_what_a_format_writes_it_reads(format: str) -> None:
    arguments = {"city": 'Paris "}{', "days": [1, 2], "deep": {"a": None}}

    text, calls = read(format, find_format(format).write_call("look_up", arguments), [])

    assert text == ""
    assert [(name, json.loads(found)) for name, found in calls] == [("look_up", arguments)]


def test_templates_say_which_format_they_write() -> None:
    assert detect_format("…<tool_call>…") == "hermes"
    assert detect_format("…[TOOL_CALLS]…") == "mistral"
    assert detect_format('…{"name": "x", "parameters": y}') == "llama3"
    assert detect_format("nothing of tools") == "hermes"
    assert find_format("omnibus_models.tool_calls.llama3:FORMAT") is find_format("llama3")
    with pytest.raises(BadRequest, match="no format of tool calls"):
        find_format("nobody")


def test_the_text_of_calls_is_read_in_parts() -> None:
    reader = CallReader()

    found = [part for text in ('\x1ef\x1f{"a"', ": 1}\x1eg\x1f", "{}") for part in reader.read(text)]

    assert [tuple(part) for part in found] == [
        (0, "f", '{"a"'), (0, "", ": 1}"), (1, "g", ""), (1, "", "{}"),
    ]  # fmt: skip
