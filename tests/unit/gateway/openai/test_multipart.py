"""Forms as clients write them, and ambiguous forms."""

import pytest

from omnibus.errors import BadRequest
from omnibus_gateway.openai.multipart import parse_form

TYPE = "multipart/form-data; boundary=x"


def build_form(head: str) -> bytes:
    return b"--x\r\n" + head.encode() + b"\r\n\r\nvalue\r\n--x--\r\n"


@pytest.mark.parametrize(
    ("quoted_name", "name"),
    [
        ('"model"', "model"),
        ('"image[]"', "image"),
        ('"a%22b"', 'a"b'),
        (r'"a\"b"', 'a"b'),
        (r'"a\\"', "a\\"),
        (r'"C:\a.png"', r"C:\a.png"),
    ],
)
def test_a_name_is_read_as_its_client_escapes_it(quoted_name: str, name: str):
    parsed_form = parse_form(build_form(f"Content-Disposition: form-data; name={quoted_name}"), TYPE)

    assert parsed_form.fields() == {name: "value"}


def test_an_escaped_quote_ends_no_file_name():
    hidden = r'Content-Disposition: form-data; name="file"; filename="a\"; name=\"mask\"; \".png"'

    [file] = parse_form(build_form(hidden), TYPE).files("file", "mask")

    assert (file.name, file.filename) == ("file", 'a"; name="mask"; ".png')


@pytest.mark.parametrize(
    "head",
    [
        'Content Disposition: a\r\nContent-Disposition: form-data; name="a"',
        'Content-Disposition : form-data; name="a"',
        'Content-Disposition: form-data; name="a"\r\n folded: b',
        r'Content-Disposition: form-data; name="a\"',
        f'Content-Disposition: form-data; name="{chr(92) * 257}',
    ],
)
def test_a_head_that_readers_may_read_differently_is_refused(head: str):
    with pytest.raises(BadRequest):
        parse_form(build_form(head), TYPE)
