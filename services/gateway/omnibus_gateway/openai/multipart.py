"""Forms with files (RFC 7578, multipart/form-data), parsed strictly from a complete body."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from omnibus.errors import BadRequest, TooLarge

#: Limits: parts of a form, bytes of the headers of a part, and bytes of a field that is not a file.
MAX_PARTS, MAX_HEADER_BYTES, MAX_FIELD_BYTES = 128, 4096, 1 << 20

_KIND = re.compile(r"multipart/form-data\s*;(?:.*;)?\s*boundary=(?:\"([^\"]{1,70})\"|([^\s;\"]{1,70}))", re.I | re.S)
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}(?<! )")
# Possessive: a run of backslashes matches in only one way, so that the search for a missing end fails at once.
_NAMED = re.compile(r"(?<![\w*])(?P<key>name|filename)=\"(?P<value>(?:\\[\\\"]|[^\"\r\n]){0,256}+)\"", re.I)
_QUOTED_PAIR = re.compile(r"\\([\\\"])")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_FORM_DATA = re.compile(r"form-data(\s*;.*)?", re.I | re.S)


class FormPart(Struct, frozen=True):
    """One part. ``filename`` is None for a plain field; ``mime`` is the client's type of the file, or ""."""

    name: str
    data: bytes
    filename: str | None
    mime: str


class Form:
    """The parts of a form by name. ``name[]``, as clients write lists, is read as ``name``."""

    def __init__(self, parts: Sequence[FormPart]) -> None:
        self._parts = parts

    def files(self, *names: str) -> list[FormPart]:
        """Return the files with these names, in order."""
        return [part for part in self._parts if part.filename is not None and part.name in names]

    def file(self, name: str) -> FormPart:
        """Return the only file called ``name``. Raises ``BadRequest``."""
        parts = self.files(name)
        if len(parts) != 1:
            message = f"Missing required parameter: '{name}'." if not parts else f"Send one '{name}', not {len(parts)}."
            raise BadRequest(message, param=name)
        return parts[0]

    def fields(self, *lists: str) -> dict[str, str | list[str]]:
        """Return the fields except files, as text; those of ``lists`` as lists. Raises ``BadRequest``."""
        values: dict[str, str | list[str]] = {}
        for part in self._parts:
            if part.filename is not None:
                continue
            text = _decode_text(part)
            if part.name in lists:
                values.setdefault(part.name, []).append(text)  # type: ignore[union-attr]
            elif part.name in values:
                raise BadRequest(f"The field '{part.name}' appears twice: send it once.", param=part.name)
            else:
                values[part.name] = text
        return values

    def check_file_names(self, *names: str) -> None:
        """Raises ``BadRequest`` for a file with any other name."""
        for part in self._parts:
            if part.filename is not None and part.name not in names:
                raise BadRequest(f"Unrecognized file supplied: {part.name}", param=part.name)


def parse_form(body: bytes, kind: str) -> Form:
    """Read a form. ``kind`` is the request's content type. Raises ``BadRequest`` and ``TooLarge``."""
    kind_match = _KIND.match(kind)
    boundary = (kind_match[1] or kind_match[2]) if kind_match else ""
    if not _BOUNDARY.fullmatch(boundary):
        raise BadRequest("The request must be a form: send multipart/form-data with a boundary.")
    return Form([_parse_part(body, *each) for each in _split_parts(body, b"--" + boundary.encode("ascii"))])


def _split_parts(body: bytes, mark: bytes) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each part, without copying it."""
    at = body.find(mark, 0, len(mark) + 2)  # an empty line may precede the first boundary
    if at < 0 or body[:at] not in (b"", b"\r\n"):
        raise _malformed_error()
    at += len(mark)
    for _ in range(MAX_PARTS + 1):
        if body[at : at + 2] == b"--":
            return
        end = body.find(b"\r\n" + mark, at)
        if body[at : at + 2] != b"\r\n" or end < 0:
            raise _malformed_error()
        yield at + 2, end
        at = end + 2 + len(mark)
    raise TooLarge(f"The form has more than {MAX_PARTS} parts, which is the limit.")


def _parse_part(body: bytes, start: int, end: int) -> FormPart:
    head_end = body.find(b"\r\n\r\n", start, min(end, start + MAX_HEADER_BYTES + 4))
    if head_end < 0:
        raise _malformed_error()
    headers = dict(_parse_headers(body[start:head_end]))
    disposition = headers.get("content-disposition", "")
    parameters = {match["key"].lower(): _unescape_name(match["value"]) for match in _NAMED.finditer(disposition)}
    if not _FORM_DATA.fullmatch(disposition) or not parameters.get("name"):
        raise _malformed_error()
    name = parameters["name"].removesuffix("[]")
    mime = headers.get("content-type", "").partition(";")[0].strip()
    return FormPart(name, body[head_end + 4 : end], parameters.get("filename"), mime)


def _parse_headers(block: bytes) -> Iterator[tuple[str, str]]:
    try:
        lines = block.decode().split("\r\n")
    except UnicodeDecodeError:
        raise _malformed_error() from None
    for line in lines:
        name, mark, value = line.partition(":")
        if not mark or not _HEADER_NAME.fullmatch(name):
            raise _malformed_error()
        yield name.lower(), value.strip()


def _unescape_name(value: str) -> str:
    """Unescape a quoted name: browsers write ``%22``, other clients a backslash."""
    return _QUOTED_PAIR.sub(r"\1", value).replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


def _decode_text(part: FormPart) -> str:
    if len(part.data) > MAX_FIELD_BYTES:
        raise TooLarge(
            f"The field '{part.name}' has more than {MAX_FIELD_BYTES} bytes, which is the limit.", param=part.name
        )
    try:
        return part.data.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"The field '{part.name}' is not valid UTF-8.", param=part.name) from None


def _malformed_error() -> BadRequest:
    return BadRequest("The form is malformed or truncated.")
