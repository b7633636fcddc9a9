"""Conversion of JSON schemas' regular expressions and formats to Rust's ``regex`` syntax.

``llguidance`` reads that syntax. A schema's ``pattern`` is an ECMA-262 regular expression (JSON Schema 2020-12,
validation, 6.3.3). Both syntaxes mostly agree. If they differ, the same characters have another meaning, and an answer
would pass that the schema rejects.
"""

import re

#: White space of ECMA-262 (12.2 and 12.3), for a character class. Rust's also has U+0085, and lacks U+FEFF.
_SPACE = r"\t\n\x{0B}\f\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACE}
#: Characters that ``.`` matches: all but ends of lines, of which Rust has only one.
_DOT = r"[^\n\r\x{2028}\x{2029}]"
#: A control character that negated classes do not contain. For a class with all control characters, ``llguidance`` 1.7
#: assumes that quotes and backslashes are members as well.
_RARE = r"\x{1}"
#: Escapes of one letter that both have, and those of special characters.
_PLAIN = "/,:=!<>@%'\"`;_ "
_SAME_ESCAPES, _SYNTAX = "tnrf", rf"^$\.*+?()[]{{}}|-#&~{_PLAIN}"
_HEX, _UNICODE, _LONG = (
    re.compile("[0-9a-fA-F]{2}"),
    re.compile("[0-9a-fA-F]{4}"),
    re.compile(r"\{([0-9a-fA-F]{1,6})\}"),
)
_LOW = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_PROPERTY, _COUNT = re.compile(r"\{\^?[\w=]+\}"), re.compile(r"\{\d+(?:,\d*)?\}")
_GROUP = re.compile(r"\?(?:P?<[A-Za-z_]\w*>|:)")

_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_BASE64 = "(?:[0-9a-zA-Z+/]{4})*(?:[0-9a-zA-Z+/]{2}==|[0-9a-zA-Z+/]{3}=)?"
#: Formats that are enforced by these expressions. Days are those of the calendar (RFC 3339, 5.7). Seconds end at 59: a
#: leap second is valid in two minutes of a year, and most parsers reject it.
FORMATS = {
    "date": _DATE,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "time": _TIME,
    "base64": _BASE64,
    "byte": _BASE64,
    "base64url": "[A-Za-z0-9_-]*={0,2}",
    "ipv4network": rf"(?:{_OCTET}\.){{3}}{_OCTET}/(?:[12]?[0-9]|3[0-2])",
    "uuid1": "", "uuid3": "", "uuid4": "", "uuid5": "", "uuid6": "", "uuid7": "", "uuid8": "",
}  # fmt: skip
FORMATS |= {
    name: f"[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{name[4]}[0-9a-fA-F]{{3}}-[89abAB][0-9a-fA-F]{{3}}-[0-9a-fA-F]{{12}}"
    for name in FORMATS
    if name.startswith("uuid")
}
#: Formats that ``llguidance`` enforces itself, and formats that any text has: file locations, or how to show a text.
NATIVE_FORMATS = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
FREE_FORMATS = frozenset({"binary", "directory-path", "file-path", "multiline", "password", "path", "text", "textarea"})
#: Limits that the library does not enforce: the most characters (RFC 5321, 4.5.3.1; RFC 1035, 2.3.4).
LENGTHS = {"email": r"^[^@]{1,64}@[^@]{1,255}$", "hostname": r"^[^@]{1,253}$"}

_DATES, _TIMES = r"\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D", r"\d+(?:[.,]\d+)?S"
_CLOCK = rf"T(?:\d+H(?:\d+M)?(?:{_TIMES})?|\d+M(?:{_TIMES})?|{_TIMES})"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#: Expressions with look-around that libraries put into schemas, the same without it, and the most characters.
#: Sources: zod 4, ``core/regexes.ts``: email, duration, hostname, domain; earlier releases of pydantic 2: ``Decimal``.
_KNOWN: dict[str, tuple[str, int]] = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
        0,
    ),
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": (
        rf"^P(?:\d+W|(?:{_DATES})(?:{_CLOCK})?|{_CLOCK})$",
        0,
    ),
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$": (rf"^{_LABEL}(?:\.{_LABEL})*\.?$", 253),
    r"^(?=.{1,253}$)([a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]{2,63}$": (
        rf"^(?:{_LABEL}\.)+[a-zA-Z]{{2,63}}$",
        253,
    ),
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": (r"^[+-]?(?:\d+\.?\d*|\.\d+)$", 0),
}
#: zod's local times, which have no zone. With them, ``format`` is only a name, since RFC 3339 times have a zone.
_LOCAL_TIME = re.compile(r"\^\(\?:\[01\]\\d\|2\[0-3\]\):\[0-5\]\\d[^Z]*\$")


class PatternError(ValueError):
    """An unsupported regular expression; the text has the reason."""


def convert_pattern(pattern: str) -> tuple[str, int]:
    """Return ``pattern`` in Rust's syntax, and the most characters (0: unlimited).

    Raises ``PatternError`` for look-around, back-references and invalid ECMA-262 expressions.
    """
    equivalent, most = _KNOWN.get(pattern, (pattern, 0))
    return _Converter(equivalent).convert(), most


def is_local_time(format: object, pattern: object) -> bool:
    """Return whether ``pattern`` matches times without a zone, which no ``format`` does."""
    return format == "time" and isinstance(pattern, str) and bool(_LOCAL_TIME.fullmatch(pattern))


def exclude_names(names: list[str]) -> str:
    """Return a regular expression of every text except ``names``, without look-ahead."""
    return f"^(?:{_exclude_texts(sorted(set(names)))})$"


def _exclude_texts(rests: list[str]) -> str:
    """Return an expression of every text except ``rests``, which are sorted."""
    options = [] if rests[:1] == [""] else [""]
    rests = [rest for rest in rests if rest]
    heads = list(dict.fromkeys(rest[0] for rest in rests))
    letters = "".join(map(_escape_letter, heads))
    options.append(f"[^{_RARE}{letters}](?s:.*)" if heads else "(?s:.+)")
    for head in heads:
        following = [rest[1:] for rest in rests if rest[0] == head]
        options.append(f"{_escape_letter(head)}(?:{_exclude_texts(following)})")
    return "|".join(options)


def _escape_letter(letter: str) -> str:
    return letter if letter.isalnum() and letter.isascii() else f"\\x{{{ord(letter):X}}}"


class _Converter:
    """Converts one expression."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def convert(self) -> str:
        converted_text = ""
        while self._at < len(self._pattern):
            letter = self._pattern[self._at]
            self._at += 1
            converted_text += self._convert_letter(letter)
        return converted_text

    def _convert_letter(self, letter: str) -> str:
        if letter == "[":
            return self._convert_class()
        if letter == "\\":
            escape = self._convert_escape()
            return f"[{escape}]" if self._was_class else escape
        if letter == "(":
            return self._convert_group()
        if letter == "{" and (count := _COUNT.match(self._pattern, self._at - 1)):
            self._at = count.end()
            return count[0]
        return _DOT if letter == "." else f"\\{letter}" if letter in "{}]" else letter

    def _convert_group(self) -> str:
        if not self._pattern.startswith("?", self._at):
            return "("
        group = _GROUP.match(self._pattern, self._at)
        if group is None:
            kind = self._pattern[self._at : self._at + 3]
            if kind.startswith(("?=", "?!", "?<=", "?<!")):
                raise PatternError("look-around is not supported: rewrite the pattern without it")
            raise PatternError(f"'({kind}' is unknown")
        self._at = group.end()
        return "(?:"

    def _convert_class(self) -> str:
        converted_class = "["
        if self._pattern.startswith("^", self._at):
            converted_class, self._at = f"[^{_RARE}", self._at + 1
        if self._pattern.startswith("]", self._at):
            raise PatternError("a character class is empty")
        while self._at < len(self._pattern):
            letter = self._pattern[self._at]
            self._at += 1
            if letter == "]":
                if converted_class.startswith(r"[\x{0}-"):
                    raise PatternError("a class of all control characters is not supported")
                return f"{converted_class}]"
            if letter == "\\":
                escape = self._convert_escape(within=True)
                converted_class += f"[{escape}]" if self._was_class else escape
            else:
                literal = letter in "[&~^" or (letter == "-" and converted_class.endswith("]"))
                converted_class += f"\\{letter}" if literal else letter
        raise PatternError("a character class does not end")

    def _convert_escape(self, *, within: bool = False) -> str:
        """Convert an escape; set ``_was_class`` if it has members of a class."""
        self._was_class = False
        letter = self._pattern[self._at : self._at + 1]
        self._at += 1
        if not letter:
            raise PatternError("a backslash is at its end")
        if letter.lower() in _CLASSES:
            self._was_class = True
            members = _CLASSES[letter.lower()]
            return members if letter in _CLASSES else f"^{members}"
        if letter in _SYNTAX:
            return letter if letter in _PLAIN else f"\\{letter}"
        if letter in _SAME_ESCAPES:
            return f"\\{letter}"
        if letter in "xu":
            return f"\\x{{{self._read_code(letter):X}}}"
        if letter in "pP" and (property := _PROPERTY.match(self._pattern, self._at)):
            self._at = property.end()
            return f"\\{letter}{property[0]}"
        return self._convert_rare_escape(letter, within)

    def _convert_rare_escape(self, letter: str, within: bool) -> str:
        following = self._pattern[self._at : self._at + 1]
        if letter == "v":
            return r"\x{0B}"
        if letter == "0" and not following.isdigit():
            return r"\x{0}"
        if letter == "c" and following.isascii() and following.isalpha():
            self._at += 1
            return f"\\x{{{ord(following) % 32:X}}}"
        if letter == "b" and within:
            return r"\x{8}"
        if letter in ("b", "B"):
            raise PatternError("word boundaries are not supported: rewrite the pattern without them")
        if letter.isdigit() or letter == "k":
            raise PatternError("references to groups are not supported")
        raise PatternError(f"'\\{letter}' is not an escape of ECMA-262")

    def _read_code(self, letter: str) -> int:
        long = _LONG.match(self._pattern, self._at) if letter == "u" else None
        code = long or (_HEX if letter == "x" else _UNICODE).match(self._pattern, self._at)
        if code is None:
            raise PatternError(f"'\\{letter}' lacks its number")
        self._at = code.end()
        number = int(long[1] if long else code[0], 16)
        if 0xD800 <= number < 0xDC00 and (low := _LOW.match(self._pattern, self._at)):
            self._at = low.end()
            number = 0x10000 + ((number - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if 0xD800 <= number < 0xE000 or number > 0x10FFFF:
            raise PatternError(f"'\\{letter}' names half a character")
        return number
