"""Text as it is spoken: sentences, with numbers, amounts, times and symbols in words."""

import re
import unicodedata
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

from omnibus.errors import BadRequest
from omnibus_real.packages import import_package

#: Characters of one sentence. A longer one is spoken in parts, which bounds memory and the wait for the first samples.
MAX_SENTENCE = 300
#: Digits of a whole number that is spoken as one. The digits of a longer one are spoken one by one.
_LONGEST_NUMBER = 12

#: The end of a sentence: not after an abbreviation or an initial.
_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))"
    r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bvs\.)(?<!e\.g\.)(?<!i\.e\.)(?<!\b[A-Z]\.)\s+|\n+"
)
#: Parts of a long sentence: they end with punctuation if possible, else with a word.
_SENTENCE_PART = re.compile(
    rf".{{1,{MAX_SENTENCE}}}(?:(?<=[,;:.!?])\s|$)|.{{1,{MAX_SENTENCE}}}(?:\s|$)|.{{{MAX_SENTENCE}}}", re.DOTALL
)

#: Letters that are not a Latin letter with accents, and punctuation that is spoken as other punctuation.
_PLAIN = str.maketrans(
    {"ß": "ss", "ø": "o", "Ø": "O", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ł": "l", "Ł": "L", "đ": "d", "ı": "i"}
    | {"½": " 1/2", "¼": " 1/4", "¾": " 3/4"}
    | dict.fromkeys("‘’ʼ`", "'") | dict.fromkeys("–—()[]{}", ", ") | dict.fromkeys('“”«»"*_|~^<>\\', " ")
)  # fmt: skip
_SYMBOLS = {"&": "and", "+": "plus", "=": "equals", "@": "at", "%": "percent", "°": "degrees", "/": "slash"}
_ABBREVIATIONS = {"e.g.": "for example", "i.e.": "that is", "vs.": "versus", "St.": "Saint", "etc.": "etcetera"}
_TITLES = r"\b(Mr|Mrs|Ms|Dr)\."
#: Names of a unit and of its hundredth, each of one and of several.
_CURRENCIES = {
    **dict.fromkeys(("$", "USD"), ("dollar", "dollars", "cent", "cents")),
    **dict.fromkeys(("€", "EUR"), ("euro", "euros", "cent", "cents")),
    **dict.fromkeys(("£", "GBP"), ("pound", "pounds", "penny", "pence")),
}
_AMOUNT = r"(\d[\d,]*)(?:\.(\d\d))?(?![\d.,]*\d)"
_SCALE = r"(?: (thousand|million|billion|trillion)\b)?"
_FRACTIONS = {2: ("half", "halves"), 4: ("quarter", "quarters")}
#: Punctuation by its strength: of several signs, the strongest one is spoken.
_SIGNS = ",;:.!?"


async def split_sentences(parts: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield complete sentences of a stream, each of at most ``MAX_SENTENCE`` characters."""
    rest = ""
    async for part in parts:
        *sentences, rest = _SENTENCE_END.split(rest + part)
        if len(rest) > 2 * MAX_SENTENCE:
            *pieces, rest = _SENTENCE_PART.findall(rest)
            sentences += pieces
        for sentence in sentences:
            for piece in _SENTENCE_PART.findall(sentence):
                yield piece
    for piece in _SENTENCE_PART.findall(rest):
        yield piece


def spell_out(text: str) -> str:
    """Return ``text`` in words of letters a to z and punctuation.

    Raises ``BadRequest`` for letters of other scripts.
    """
    text = _to_plain_letters(text)
    for pattern, replace in _RULES:
        text = pattern.sub(replace, text)
    return text.strip()


def _to_plain_letters(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text.translate(_PLAIN))
    plain = "".join(each for each in letters if not unicodedata.combining(each))
    if foreign := sorted({each for each in plain if each.isalpha() and not each.isascii()}):
        raise BadRequest(
            f"the voice speaks English and cannot pronounce {' '.join(foreign[:8])}; send the text in Latin letters",
            param="input",
        )
    return plain


@cache
def _number_words() -> Callable[..., Any]:
    return import_package("inflect").engine().number_to_words


def _say_digits(digits: str, group: int = 1) -> str:
    return str(_number_words()(digits, group=group)).replace(",", "")


def _say_whole(digits: str) -> str:
    if len(digits) > _LONGEST_NUMBER or (digits[0] == "0" and len(digits) > 1):
        return _say_digits(digits)
    return str(_number_words()(digits, andword="")).replace(",", "")


def _say_number(match: re.Match[str]) -> str:
    whole, *decimals = match[0].replace(",", "").split(".")
    return f" {' point '.join([_say_whole(whole), *map(_say_digits, decimals)])} "


def _say_ordinal(match: re.Match[str]) -> str:
    digits = match[1].replace(",", "")
    return f" {_number_words()(digits + match[2], andword='').replace(',', '')} "


def _say_year(match: re.Match[str]) -> str:
    century, years = match[0][:2], match[0][2:]
    if years == "00":
        return f" {_say_whole(century)} hundred "
    return f" {_say_digits(match[0], group=2).replace('zero', 'oh')} "


def _say_time(match: re.Match[str]) -> str:
    hours, minutes = int(match[1]), match[2]
    full_hour = "o'clock" if hours <= 12 else "hundred"
    spoken_minutes = full_hour if minutes == "00" else f"oh {minutes[1]}" if minutes[0] == "0" else minutes
    return f" {hours} {spoken_minutes} "


def _say_fraction(match: re.Match[str]) -> str:
    above, below = int(match[1]), int(match[2])
    if below not in _FRACTIONS:
        return f" {above} over {below} "
    return f" {above} {_FRACTIONS[below][above != 1]} "


def _say_amount(whole: str, hundredths: str | None, scale: str | None, currency: str) -> str:
    unit, units, cent, cents = _CURRENCIES[currency]
    if scale:
        return f" {whole}{f'.{hundredths}' if hundredths else ''} {scale} {units} "
    pence = int(hundredths or 0)
    amounts = [f"{whole} {unit if whole == '1' else units}"] if whole != "0" or not pence else []
    if pence:
        amounts.append(f"{pence} {cent if pence == 1 else cents}")
    return f" {' and '.join(amounts)} "


#: Applied in this order: results of earlier ones may contain numbers for later ones.
_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile("|".join(rf"\b{re.escape(each)}" for each in _ABBREVIATIONS)), lambda found: _ABBREVIATIONS[found[0]]),
    (re.compile(r"(?<![^\s(])[-−](?=[$€£]?\d)"), lambda _: "minus "),
    (re.compile(_TITLES), lambda found: found[1]),
    (re.compile(rf"([$€£]) ?{_AMOUNT}{_SCALE}"), lambda found: _say_amount(found[2], found[3], found[4], found[1])),
    (
        re.compile(rf"{_AMOUNT}{_SCALE} ?(€|EUR\b|USD\b|GBP\b)"),
        lambda found: _say_amount(found[1], found[2], found[3], found[4]),
    ),
    (re.compile(r"\b([01]?\d|2[0-3]):([0-5]\d)\b"), _say_time),
    (re.compile(r"\b(\d{1,2})\s?[/⁄]\s?(\d{1,2})\b(?!/)"), _say_fraction),
    (re.compile(r"\b(\d[\d,]*)(st|nd|rd|th)\b"), _say_ordinal),
    (re.compile(r"(?<![\d.,])(?:1[1-9]\d\d|20[1-9]\d)(?![\d.,]*\d)"), _say_year),
    (re.compile(r"\d+(?:,\d{3})*(?:\.\d+)*"), _say_number),
    (re.compile("|".join(map(re.escape, _SYMBOLS))), lambda found: f" {_SYMBOLS[found[0]]} "),
    (re.compile(r"(?<=[A-Za-z]{2})\.(?=[A-Za-z]{2})"), lambda _: " dot "),
    (re.compile(rf"\s*[{_SIGNS}][\s{_SIGNS}]*"), lambda found: f"{max(found[0].strip(), key=_SIGNS.find)} "),
    (re.compile(rf"[^A-Za-z'{_SIGNS}]+"), lambda _: " "),
)
