"""What an expression of Prometheus' language asks for: selectors with their matchers, and labels that it groups by.

A tokenizer and the few places where names stand for something else; no evaluation.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>(?:\d+(?:ms|[smhdwy]))+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)
      | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
      | (?P<mark>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],:@])""",
    re.VERBOSE,
)
_BEFORE_LABELS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = _BEFORE_LABELS | {"and", "or", "unless", "offset", "bool", "inf", "nan"}
_AGGREGATES = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile", "stddev", "group"}
#: Grafana's own variables, and what stands for them.
_VARIABLES = {"$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}


class Matcher(NamedTuple):
    label: str
    sign: str
    value: str


class Selector(NamedTuple):
    """``name{label="value"}``."""

    name: str
    matchers: tuple[Matcher, ...]


class Asked(NamedTuple):
    """All that an expression names."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]  # that it groups or joins by


class Bad(ValueError):
    """The text is no expression that this reads."""


def read(text: str) -> Asked:
    """Raises ``Bad``."""
    tokens = list(_tokens(text))
    _balanced(tokens, text)
    selectors, labels = [], set()
    at = 0
    while at < len(tokens):
        kind, value = tokens[at]
        after = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind != "name":
            continue
        if value in _BEFORE_LABELS:
            if after == "(":
                found, at = _labels(tokens, at + 1)
                labels |= found
        elif value not in _WORDS and after != "(" and value not in _AGGREGATES:
            matchers, at = _matchers(tokens, at + 1) if after == "{" else ((), at)
            selectors.append(Selector(value, matchers))
    if not selectors:
        raise Bad(f"{text!r} names no metric")
    return Asked(tuple(selectors), frozenset(labels))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for name, value in _VARIABLES.items():
        text = text.replace(name, value)
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Bad(f"{text[at : at + 20]!r} of {text!r} is no token")
        at = found.end()
        if found.lastgroup != "space":
            yield str(found.lastgroup), found[0]


def _balanced(tokens: list[tuple[str, str]], text: str) -> None:
    pairs, opened = {")": "(", "}": "{", "]": "["}, []
    for kind, value in tokens:
        if kind == "mark" and value in pairs.values():
            opened.append(value)
        elif kind == "mark" and value in pairs and (not opened or opened.pop() != pairs[value]):
            raise Bad(f"{value} closes nothing in {text!r}")
    if opened:
        raise Bad(f"{opened[-1]} is not closed in {text!r}")


def _labels(tokens: list[tuple[str, str]], at: int) -> tuple[set[str], int]:
    found = set()
    while tokens[at][1] != ")":
        if tokens[at][0] == "name":
            found.add(tokens[at][1])
        at += 1
    return found, at + 1


def _matchers(tokens: list[tuple[str, str]], at: int) -> tuple[tuple[Matcher, ...], int]:
    found = []
    while tokens[at][1] != "}":
        (kind, label), (_, sign), (last, value) = (*tokens[at : at + 3], *[("", "")] * 3)[:3]
        if kind != "name" or sign not in ("=", "!=", "=~", "!~") or last != "string":
            raise Bad(f"{label} {sign} {value} is no matcher")
        found.append(Matcher(label, sign, value[1:-1]))
        at += 3
        if tokens[at][1] == ",":
            at += 1
    return tuple(found), at + 1
