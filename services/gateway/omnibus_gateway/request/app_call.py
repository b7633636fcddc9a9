"""Recorded calls of apps, with answer digests to compare other versions."""

from hashlib import sha256

import msgspec

from omnibus.graph import Invocation
from omnibus.recording.records import AppCall
from omnibus_gateway.media.blob_store import MediaStore

#: Bytes of a request that its record repeats; a longer one is stored in the media store.
MAX_BODY_BYTES = 16 << 10


class AnswerDigest:
    """Digest of an answer, independent of the cuts between its parts."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._in_text = False

    def add_part(self, body: bytes) -> None:
        """Add the next part, or a whole answer, as JSON."""
        if body.startswith(b'"'):
            text: str = msgspec.json.decode(body)
            self._hash.update((b"" if self._in_text else b"\0") + text.encode("utf-8", "surrogatepass"))
            self._in_text = True
        else:
            self._hash.update(b"\1" + body)
            self._in_text = False

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class AppCallLog:
    """One call while it runs. If ``placed``, ``body`` names media that the gateway placed."""

    def __init__(self, kind: str, number: int, body: bytes, *, placed: bool) -> None:
        self._kind = kind
        self._number = number
        self._body = body
        self._placed = placed
        self.answer = AnswerDigest()

    def to_record(self, first: Invocation, media: MediaStore) -> AppCall:
        """Return the record of this call, whose ``first`` segment ended; ``media`` stores a long body."""
        body, digest = self._body.decode(), ""
        if len(self._body) > MAX_BODY_BYTES:
            body, digest = "", sha256(self._body).hexdigest()
            media.put_nowait(digest, self._body)
        return AppCall(
            first.app, self._kind, self._number, first.seed, body, digest, self._placed, self.answer.hexdigest()
        )
