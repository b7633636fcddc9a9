"""Multipart forms give parts or one typed error, in linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.errors import Rejected
from omnibus_gateway.openai import multipart
from tests.fuzz.corpus import save_failing, try_saved
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.profile import limit_examples
from tests.fuzz.refusal import value_or_refusal

CPU_SECONDS = 1.0
TYPE = "multipart/form-data; boundary=x"


def make_form(*parts: tuple[bytes, bytes], mark: bytes = b"x") -> bytes:
    whole = b"".join(b"--" + mark + b"\r\n" + head + b"\r\n\r\n" + body + b"\r\n" for head, body in parts)
    return whole + b"--" + mark + b"--\r\n"


FIELD = b'Content-Disposition: form-data; name="model"'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav'
FORMS = [
    make_form((FIELD, b"m"), (FILE, b"RIFF")),
    make_form((FIELD.replace(b"model", b"image[]"), b"a"), (FILE, b"")),
    make_form((b'content-disposition:form-data;name="%22%0D"', b"\xff")),
    make_form(),
]
TYPES = [
    TYPE,
    'multipart/form-data; boundary="x"',
    "multipart/form-data; charset=utf-8; boundary=x",
    "multipart/form-data",
]


def read_form(body: bytes, type: str = TYPE) -> None:
    began = time.thread_time()
    form = value_or_refusal(multipart.parse_form, body, type)
    if not isinstance(form, Rejected):
        value_or_refusal(form.fields, "image", "timestamp_granularities")
        value_or_refusal(form.file, "file")
    assert time.thread_time() - began < CPU_SECONDS


@try_saved("forms", type=TYPE)
@limit_examples(500)
@given(data=mutate_bytes(FORMS), type=st.sampled_from(TYPES))
def test_a_damaged_form_is_read_or_refused(data: bytes, type: str):
    with save_failing("forms", data):
        read_form(data, type)


@limit_examples(300)
@given(data=mutate_bytes([each.encode() for each in TYPES]))
def test_a_form_of_any_content_type_is_read_or_refused(data: bytes):
    read_form(FORMS[0], data.decode("latin-1"))


HEADS = st.lists(
    st.sampled_from(
        [FIELD, FILE, b"", b":", b"a:b", b"Content-Disposition: attachment", b"\xff:x", FIELD + b"; " * 900]
    ),
    max_size=3,
).map(b"\r\n".join)


@limit_examples(300)
@given(parts=st.lists(st.tuples(HEADS, st.binary(max_size=30)), max_size=4))
def test_a_form_of_any_parts_is_read_or_refused(parts: list[tuple[bytes, bytes]]):
    read_form(make_form(*parts))


@pytest.mark.parametrize(
    "piece",
    [b"--x\r\n", b"\r\n--x", b"\r\n--x\r\n\r\n\r\n", b"\r\n--", b"-", b"\r\n", b"--x--", b"a: b\r\n", b"\r\n\r\n"],
)
def test_a_form_of_one_piece_again_and_again_is_decided_soon(piece: bytes):
    for start in (b"", b"--x\r\n", b"--x\r\n" + FIELD + b"\r\n\r\n", b"--x\r\n" + FILE + b"\r\n\r\n"):
        read_form(start + piece * ((4 << 20) // len(piece)))


@pytest.mark.parametrize("piece", [" ", ";", "a=b;", "boundary=", 'boundary="', "multipart/form-data;", "\t;"])
def test_a_content_type_of_one_piece_again_and_again_is_decided_soon(piece: str):
    read_form(FORMS[0], "multipart/form-data;" + piece * (8192 // len(piece)))
