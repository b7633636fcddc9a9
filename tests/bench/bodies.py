"""Requests that the benchmarks send, and the answers that they expect.

Every request has its own number, sent as its ``seed``. Each node of the invocation gets it, so each null engine can
check that it works for the right request. An image encodes the size of the tensors to send, because the encoder sees
only the image.
"""

import base64
import json
import struct
import zlib
from typing import Any

#: Model of three executors: thinker, talker, vocoder. Takes text.
TEXT_MODEL = "null-text"
#: Model of three executors: vision, thinker, talker and vocoder together. Accepts images.
IMAGE_MODEL = "null-image"
#: An app instead of a model, for the system that serves requests to apps.
NO_MODEL, APP = "no model", "repeated"
MODELS = (TEXT_MODEL, IMAGE_MODEL, NO_MODEL)

#: Codes of a spoken answer that has samples, samples of a code and a second: one second of speech.
SPEECH_CODES, CODE_SAMPLES, RATE = 50, 480, 24000

#: Numbers of requests: seven digits, and whole as float32.
FIRST, LAST = 1_000_000, 9_999_999

# Stand-ins for a request's number, as long as the number itself; the second one stands in base64 text.
_SEED, _NONCE = b"@SEED@@", b"@NONCE@@"

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIZE_AT = len(_SIGNATURE) + 25 + 8  # after IHDR and the header of the next chunk


def picture(tensor_bytes: int, nbytes: int = 0) -> bytes:
    """A one-pixel PNG that encodes ``tensor_bytes``, padded to at least ``nbytes``.

    Decoders ignore the six bytes after its end; they can differ to make each copy unique.
    """
    head, tail = (
        [_encode_chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))],
        [
            _encode_chunk(b"IDAT", zlib.compress(b"\0\0")),
            _encode_chunk(b"IEND", b""),
        ],
    )
    bare = len(_SIGNATURE) + sum(map(len, head + tail)) + 12 + 4 + 6
    padding = max(0, nbytes - bare)
    padding += -(bare + padding) % 3  # base64 then ends with exactly the six free bytes
    size_chunk = _encode_chunk(b"nuLl", struct.pack(">I", tensor_bytes) + bytes(padding))
    return b"".join([_SIGNATURE, *head, size_chunk, *tail, bytes(6)])


def tensor_bytes(data: bytes) -> int:
    """Return the tensor size that a ``picture`` encodes. Raises ``ValueError`` for other files."""
    if data[:8] != _SIGNATURE or data[_SIZE_AT - 4 : _SIZE_AT] != b"nuLl":
        raise ValueError("the picture did not arrive as it was sent")
    return int(struct.unpack_from(">I", data, _SIZE_AT)[0])


def _encode_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def text_chat(tokens: int = 1, stream: bool = False) -> bytes:
    """A text chat request whose answer is ``tokens`` tokens, also spoken."""
    return _make_chat(TEXT_MODEL, "Describe what you hear.", tokens, stream)


def spoken_chat() -> bytes:
    """A text chat request for a spoken answer: one token and ``SPEECH_CODES`` codes of speech."""
    return _make_chat(TEXT_MODEL, "Describe what you hear.", 1, False, codes=SPEECH_CODES)


def image_chat(png: bytes, distinct: bool = False, spoken: bool = True) -> bytes:
    """A chat request with an image (a data URL), answered in text.

    ``distinct``: no two requests have the same bytes. ``spoken``: the answer is spoken too.
    """
    text = base64.b64encode(png).decode()
    if distinct:
        text = text[: -len(_NONCE)] + _NONCE.decode()
    content = [
        {"type": "text", "text": "Describe what you see."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + text}},
    ]
    return _make_chat(IMAGE_MODEL, content, 1, False, spoken)


def make_echo() -> bytes:
    """The body of the floor's echo request."""
    return b'{"seed":' + _SEED + b',"text":"Describe what you hear.","stream":false,"tokens":1}'


def _make_chat(model: str, content: Any, tokens: int, stream: bool, spoken: bool = True, codes: int = 0) -> bytes:
    audio = {"voice": "alloy", "format": "pcm16", **({"max_tokens": codes} if codes else {})}
    speech = {"modalities": ["text", "audio"], "audio": audio}
    request = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        **(speech if spoken else {}),
        "max_tokens": tokens,
        "stream": stream,
        "seed": _SEED.decode(),
    }
    return json.dumps(request).encode().replace(b'"%b"' % _SEED, _SEED)


def fill_template(template: bytes, seed: int) -> bytes:
    """``template`` as request number ``seed``."""
    return template.replace(_SEED, b"%d" % seed).replace(_NONCE, b"%08d" % seed)


def compute_level(seed: int) -> int:
    """Value of every 16-bit sample in the spoken answer to request ``seed``."""
    return seed % 30_000 + 1


def make_answer(seed: int, tokens: int) -> list[str]:
    """The tokens of the answer to request number ``seed``."""
    return [str(seed), *(f" {number}" for number in range(1, tokens))]
