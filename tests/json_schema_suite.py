"""The official JSON-Schema-Test-Suite against the grammars of answers.

It records which schemas are accepted, and which values they allow. The suite is that of the ``jsonschema`` 4.23.0
source distribution (``json/``, MIT licence, (c) 2012 Julian Berman, included in the archive). It contains the files of
draft 2020-12, with less white space.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

from llguidance import LLMatcher, LLTokenizer

from omnibus.structured.grammar import find_schema_error, limits, schema_rule

ARCHIVE = Path(__file__).parent / "unit" / "structured" / "json_schema_test_suite.zip"
_DRAFT = "draft2020-12/"
#: Orders of keys of one value that are tried; a grammar has one, that of the schema.
_MAX_FORMS = 200
_TOKENIZER = LLTokenizer("byte")


class Grammar:
    """Grammar of a schema; ``error`` is the reason if it has none."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.error = find_schema_error(schema)
        if not self.error:
            lark = LLMatcher.grammar_from_lark(f"start: {schema_rule(schema)}")
            self._start = LLMatcher(_TOKENIZER, lark, log_level=0, limits=limits())

    def accepts_text(self, text: str) -> bool:
        """Return True if the grammar accepts ``text``, byte by byte."""
        matcher, body = self._start.deep_copy(), list(text.encode())
        return bool(matcher.try_consume_tokens(body) == len(body) and matcher.is_accepting())

    def accepts_value(self, value: Any) -> bool:
        """Return True if the grammar accepts ``value`` in any key order."""
        return any(map(self.accepts_text, itertools.islice(forms_of(value), _MAX_FORMS)))


def forms_of(value: Any) -> Iterator[str]:
    """``value`` as answers are laid out, in each order of its keys."""
    if isinstance(value, dict):
        for items in itertools.permutations(value.items()):
            for texts in itertools.product(*(list(itertools.islice(forms_of(each), 6)) for _, each in items)):
                yield f"{{{', '.join(f'{_dump_json(name)}: {text}' for (name, _), text in zip(items, texts, strict=True))}}}"
    elif isinstance(value, list):
        for texts in itertools.product(*(list(itertools.islice(forms_of(each), 6)) for each in value)):
            yield f"[{', '.join(texts)}]"
    else:
        yield _dump_json(value)


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class FileResult(NamedTuple):
    """Result of a file of the suite; cases are ``(schema, case)`` by description."""

    schemas: int
    rejected: dict[str, str]
    loose: list[tuple[str, str]]
    narrow: list[tuple[str, str]]


@cache
def run_suite() -> dict[str, FileResult]:
    """Results of each file of the suite, by name without ``.json``."""
    results = {}
    with ZipFile(ARCHIVE) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(_DRAFT):
                groups = json.loads(archive.read(name))
                results[name.removeprefix(_DRAFT).removesuffix(".json")] = _run_file(groups)
    return results


def _run_file(groups: list[dict[str, Any]]) -> FileResult:
    result = FileResult(len(groups), {}, [], [])
    for group in groups:
        schema = group["schema"] if isinstance(group["schema"], dict) else {"allOf": [group["schema"]]}
        grammar = Grammar(schema)
        if grammar.error:
            result.rejected[group["description"]] = grammar.error
            continue
        for case in group["tests"]:
            if grammar.accepts_value(case["data"]) != case["valid"]:
                (result.narrow if case["valid"] else result.loose).append((group["description"], case["description"]))
    return result


def count_totals(results: Mapping[str, FileResult]) -> Counter[str]:
    """Numbers of schemas, of rejected ones, and of unexpected cases."""
    counts: Counter[str] = Counter()
    for each in results.values():
        counts.update(schemas=each.schemas, rejected=len(each.rejected), loose=len(each.loose), narrow=len(each.narrow))
    return counts
