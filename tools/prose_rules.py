"""The ten rules of plain English (CONTRIBUTING.md) as patterns, with replacements."""

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_SENTENCE_WORDS, MAX_SUMMARY_WORDS, MIN_SENTENCE_WORDS = 25, 12, 4
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_THING = (
    r"(it|this|that|which|plans?|planner|gateway|executors?|records?|errors?|logs?|headers?|tables?|files?|profiles?|"
    r"reports?|answers?|messages?|pages?|rows?|CODE)"
)


class Idiom(NamedTuple):
    """One pattern of a rule; ``kinds`` are the kinds of text to check, all if empty."""

    rule: str
    pattern: re.Pattern[str]
    instead: str
    kinds: frozenset[str] = frozenset()


class Hit(NamedTuple):
    """A violation of ``rule`` at ``line`` of a file, and its replacement."""

    file: str
    line: int
    rule: str
    text: str
    instead: str


class Text(NamedTuple):
    """A paragraph of prose.

    ``kind`` is ``page``, ``docstring`` or ``message``. Fragments are not whole sentences.
    """

    file: str
    line: int
    kind: str
    text: str
    is_fragment: bool = False
    is_summary: bool = False


def _idiom(rule: str, pattern: str, instead: str, *kinds: str) -> Idiom:
    return Idiom(rule, re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), instead, frozenset(kinds))


IDIOMS = (
    _idiom(
        "named subject",
        r"\b(nobody|somebody|anybody|everybody|who(so)?ever|whom|those who|whatever)\b",
        "name the actor: the client, the operator, the executor",
    ),
    _idiom(
        "named subject",
        r"(?:\A|(?<=[.;:,]\s)|(?<=\band\s)|(?<=\bor\s))what (?![^.;:]*\?)[a-z]+",
        "a noun as the subject: the value, the request, the error",
    ),
    _idiom(
        "address the reader",
        r"\b(one (can|may|must|has|needs|sees|wants)|the reader|people who|who (wants?|needs?|waits?|asks?))\b",
        '"you", or an imperative',
    ),
    _idiom(
        "verbs of the field",
        r"\b(is|are|was|were|be|been|being) (said|told|asked|heard|known to|meant|wanted|believed|looked at)\b",
        "send, return, reject, require, report",
    ),
    _idiom(
        "verbs of the field",
        rf"\b{_THING} (also )?(says?|tells?|knows?|asks?|hears?)\b",
        "reports, contains, lists, describes, requests",
    ),
    _idiom(
        "verbs of the field",
        r"\b(goes? on|going on|went on|comes? (back|by|along|later)|came|looks? after|sees? to)\b",
        "continue, return, arrive, manage",
    ),
    _idiom(
        "verbs of the field",
        r"\b(clients?|callers?|users?|sessions?|who|that) (leaves?|left|went away|go(es)? away)\b",
        "disconnects, closes",
    ),
    _idiom(
        "verbs of the field",
        r"\b(giv(es?|en|ing)|gave|tak(es?|en|ing)|took|hand(s|ed)?) (it |them )?(back|away)\b",
        "return, release, remove",
    ),
    _idiom(
        "verbs of the field",
        r"\b(keeps?|kept|holds?|held|puts?|takes?|taken) (it |them )?(apart|together|asunder)\b",
        "separate, group, combine",
    ),
    _idiom("image, audio, video", r"\b(pictures?|films?|sounds?)\b(?! (like|right|good))", "image, video, audio"),
    _idiom(
        "X is not Y",
        r"(?<!\bthere\s)\b(is|are|was|were) no (?!(longer|more|less|fewer|better|worse|later|other)\b)[a-z]+",
        '"is not", "has no"',
    ),
    _idiom(
        "place for time",
        r"\bbehind\b(?! (an? |the |your |its )?([a-z]+ )?(prox(y|ies)|load balancers?|firewalls?|NAT|ingress|CODE)\b)",
        "after, through; behind only for space",
    ),
    _idiom("place for time", r"\bbesides?\b", "next to, with, in addition to, except"),
    _idiom("place for time", r"\bwhere (there (is|are)|no|nothing|nobody|none)\b", '"if", "when"'),
    _idiom("place for time", r"\b(for ever|again and again|once more|anew)\b", "forever, repeatedly, again"),
    _idiom("place for time", r"\b(all the same|seldom|from then on)\b", "still, rarely, then"),
    _idiom("place for time", r"\bby (itself|themselves)\b", "automatically, alone"),
    _idiom("place for time", r"\bof (its|their|your|one's) own\b", "its own X, your own X, a separate X"),
    _idiom(
        "must, cannot, unknown",
        r"(?<!\bstep\s)(?<!\bgoal\s)(?<!\bway\s)(?<!\baim\s)(?<!\bidea\s)(?<!\boption\s)(?<!\bdefault\s)(?<!\btask\s)(?<!\bjob\s)"
        r"\b(is|are|was|were) to (?!(the|a|an|this|that|its|CODE)\b)[a-z]+",
        '"must", or the plain verb',
    ),
    _idiom(
        "must, cannot, unknown",
        r"\b(no such|may not|knows? no|wants an?|h(as|ave) to be)\b",
        '"unknown X", "cannot", "must be"',
        "message",
    ),
)
#: Openings of docstrings that begin with neither a noun nor a verb.
CLAUSE = re.compile(r"(What|Whether|Who|Whom|Whose|Which|Where|When|How|Why|That|As|If|Those|Once|While)\b")
PRONOUNS = {
    "it", "this", "that", "these", "those", "they", "them", "theirs", "ours", "mine", "others", "another",
    "both", "which", "what", "who", "whom",
}  # fmt: skip
IRREGULAR = {
    "begun", "born", "broken", "brought", "built", "chosen", "come", "done", "drawn", "found", "given",
    "gone", "grown", "heard", "held", "kept", "known", "lost", "made", "meant", "paid", "put", "said", "seen",
    "sent", "shown", "spent", "spoken", "taken", "thrown", "told", "understood", "won", "written",
}  # fmt: skip
NOT_PARTICIPLES = {
    "bed", "breed", "bleed", "embed", "feed", "hundred", "need", "red", "reed", "seed", "shed", "speed",
    "weed", "indeed",
}  # fmt: skip


def is_participle(name: str) -> bool:
    """Return True if ``name`` is only a participle or a pronoun.

    Such a name contains neither a thing nor its type.
    """
    word = name.strip("_")
    if word in PRONOUNS or word in IRREGULAR:
        return True
    return word.isalpha() and word.islower() and word.endswith("ed") and len(word) > 3 and word not in NOT_PARTICIPLES


def sentences(text: Text) -> Iterator[tuple[int, str]]:
    """Offsets and texts of the sentences in ``text``, without headings and cells.

    Other fragments are left out as well.
    """
    if text.is_fragment:
        return
    start = 0
    for end in [*re.finditer(r"(?<=[.!?])[\"')]?\s+", text.text), None]:
        sentence = text.text[start : end.start() if end else None]
        if len(sentence.split()) >= MIN_SENTENCE_WORDS:
            yield start, sentence
        start = end.end() if end else start


def idioms(text: Text) -> list[Hit]:
    """Matches of the patterns in ``text``."""
    return [
        _hit(text, match.start(), idiom.rule, match[0], idiom.instead)
        for idiom in IDIOMS
        if not idiom.kinds or text.kind in idiom.kinds
        for match in idiom.pattern.finditer(text.text)
    ]


def long_sentences(text: Text) -> list[Hit]:
    """Sentences of ``text`` with too many words, colons or semicolons."""
    hits = []
    for start, sentence in sentences(text):
        words, marks = len(sentence.split()), len(re.findall(r"[;:]\s", sentence))
        if words > MAX_SENTENCE_WORDS or marks > 1:
            instead = f"several sentences ({words} words, {marks} colons and semicolons)"
            hits.append(_hit(text, start, "one idea a sentence", sentence[:60] + "...", instead))
    return hits


def bad_summaries(text: Text) -> list[Hit]:
    """Return a hit for a docstring's first line if it is bad.

    It must be short, and must not begin with a clause.
    """
    if not text.is_summary:
        return []
    first = re.split(r"(?<=[.!?:;])\s|\n", text.text, maxsplit=1)[0]
    words = len(WORD.findall(first))
    if words > MAX_SUMMARY_WORDS:
        return [_hit(text, 0, "docstring", first[:60] + "...", f"at most {MAX_SUMMARY_WORDS} words, not {words}")]
    if CLAUSE.match(first):
        return [_hit(text, 0, "docstring", first[:60], "begin with a verb or a noun")]
    return []


def _hit(text: Text, offset: int, rule: str, match: str, instead: str) -> Hit:
    return Hit(text.file, text.line + text.text.count("\n", 0, offset), rule, " ".join(match.split()), instead)
