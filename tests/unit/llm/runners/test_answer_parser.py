"""Reasoning, text and calls are separated for any split of an answer."""

import random

import pytest

from omnibus.structured.calls import split_calls
from omnibus_llm.runners.answer_parser import AnswerParser
from omnibus_models.tool_calls import find_format

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
#: A model's output, True if its template begins with reasoning, and the parts: reasoning, text, calls.
ANSWERS = [
    ("<think>\nhm, 1 < 2\n</think>\n\nyes", False, ("hm, 1 < 2", "yes", [])),
    ("hm\n</think>\n\nyes", True, ("hm", "yes", [])),
    ("hm and hm", True, ("hm and hm", "", [])),
    ("yes, 1 < 2 </think> no", False, ("", "yes, 1 < 2 </think> no", [])),
    ("<think>\n\n</think>\n\nyes", False, ("", "yes", [])),
    ("<thin", False, ("", "<thin", [])),
    ("  \n plain", False, ("", "  \n plain", [])),
    (f"<think>\nhm {CALL}\n</think>\n\nso:\n{CALL}", False, (f"hm {CALL}", "so:", [("f", "{}")])),
    ("", True, ("", "", [])),
]


def parse_pieces(answer: str, thinking: bool, cuts: list[int]) -> tuple[str, str, list[tuple[str, str]]]:
    parser = AnswerParser(True, thinking, find_format("hermes").open_parser())
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    parts = [*map(parser.push, pieces), parser.close()]
    text, reasoning, calls = ("".join(part) for part in zip(*parts, strict=True))
    return reasoning, text, split_calls(calls)


@pytest.mark.parametrize(("answer", "thinking", "expected_parts"), ANSWERS)
def test_parts_are_told_apart_however_an_answer_is_cut(
    answer: str, thinking: bool, expected_parts: tuple[str, str, list[tuple[str, str]]]
) -> None:
    draw = random.Random(7)
    cuts = [sorted(draw.sample(range(len(answer) + 1), draw.randint(0, min(6, len(answer))))) for _ in range(150)]

    for each in ([], list(range(1, len(answer))), *cuts):
        assert parse_pieces(answer, thinking, each) == expected_parts, each


def test_all_of_an_answer_is_text_where_a_model_neither_thinks_nor_calls() -> None:
    parser = AnswerParser(False, False, None)

    assert parser.push("<think>hm</think> yes").text == "<think>hm</think> yes"
    assert parser.close() == ("", "", "")
