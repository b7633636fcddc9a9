"""What the benchmarks send, and what must come back.

Every request has its own number, sent as its ``seed``: each node of the invocation gets it, so each null
engine can check that it works for the right request. A picture carries the size of the tensors that are
to travel, so that the encoder, which sees nothing but the picture, knows it.
"""

import base64
import json
import struct
import zlib
from typing import Any

#: Model of three executors: thinker, talker, vocoder. Takes text.
TEXT_MODEL = "null-text"
#: Model of three executors: vision, thinker, talker and vocoder together. Takes pictures.
IMAGE_MODEL = "null-image"
#: No model at all, but an app: the system of what is asked of apps.
NO_MODEL, APP = "no model", "repeated"
MODELS = (TEXT_MODEL, IMAGE_MODEL, NO_MODEL)

#: Codes of a spoken answer that has samples, samples of a code and a second: one second of speech.
SPEECH_CODES, CODE_SAMPLES, RATE = 50, 480, 24000

#: Numbers of requests: seven digits, and whole as float32.
FIRST, LAST = 1_000_000, 9_999_999

# Stand-ins for a request's number, as long as the number itself; the second one stands in base64 text.
_SEED, _NONCE = b"@SEED@@", b"@NONCE@@"

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIZE_AT = len(_SIGNATURE) + 25 + 8  # behind IHDR and the head of the chunk that follows it


def picture(tensor_bytes: int, nbytes: int = 0) -> bytes:
    """A PNG of one pixel that asks for tensors of ``tensor_bytes``, padded to at least ``nbytes``.

    The six bytes behind its end, which decoders ignore, are free to make each copy different.
    """
    head, tail = (
        [_chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))],
        [
            _chunk(b"IDAT", zlib.compress(b"\0\0")),
            _chunk(b"IEND", b""),
        ],
    )
    bare = len(_SIGNATURE) + sum(map(len, head + tail)) + 12 + 4 + 6
    padding = max(0, nbytes - bare)
    padding += -(bare + padding) % 3  # base64 then ends with exactly the six free bytes
    asked = _chunk(b"nuLl", struct.pack(">I", tensor_bytes) + bytes(padding))
    return b"".join([_SIGNATURE, *head, asked, *tail, bytes(6)])


def tensor_bytes(data: bytes) -> int:
    """The size that a ``picture`` asks for. Raises ``ValueError`` when ``data`` is none of ours."""
    if data[:8] != _SIGNATURE or data[_SIZE_AT - 4 : _SIZE_AT] != b"nuLl":
        raise ValueError("the picture did not arrive as it was sent")
    return int(struct.unpack_from(">I", data, _SIZE_AT)[0])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def text_chat(tokens: int = 1, stream: bool = False) -> bytes:
    """A chat request in text whose answer is ``tokens`` tokens of text, spoken too."""
    return _chat(TEXT_MODEL, "Describe what you hear.", tokens, stream)


def spoken_chat() -> bytes:
    """A chat request in text whose answer is one token of text and ``SPEECH_CODES`` codes of speech."""
    return _chat(TEXT_MODEL, "Describe what you hear.", 1, False, codes=SPEECH_CODES)


def image_chat(png: bytes, distinct: bool = False, spoken: bool = True) -> bytes:
    """A chat request with a picture as data URL; ``distinct``: no two requests bring the same bytes.

    The answer is text, and ``spoken`` too.
    """
    text = base64.b64encode(png).decode()
    if distinct:
        text = text[: -len(_NONCE)] + _NONCE.decode()
    content = [
        {"type": "text", "text": "Describe what you see."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + text}},
    ]
    return _chat(IMAGE_MODEL, content, 1, False, spoken)


def echo() -> bytes:
    """The body of the floor's echo request."""
    return b'{"seed":' + _SEED + b',"text":"Describe what you hear.","stream":false,"tokens":1}'


def _chat(model: str, content: Any, tokens: int, stream: bool, spoken: bool = True, codes: int = 0) -> bytes:
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


def fill(template: bytes, seed: int) -> bytes:
    """``template`` as request number ``seed``."""
    return template.replace(_SEED, b"%d" % seed).replace(_NONCE, b"%08d" % seed)


def level(seed: int) -> int:
    """The 16-bit number that all samples of the spoken answer to request number ``seed`` have."""
    return seed % 30_000 + 1


def answer(seed: int, tokens: int) -> list[str]:
    """The tokens of the answer to request number ``seed``."""
    return [str(seed), *(f" {number}" for number in range(1, tokens))]
