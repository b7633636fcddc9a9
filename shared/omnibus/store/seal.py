"""Signatures of stored documents that decide which code runs: plans and app records.

A signed document is the JSON of the document with one more field before all others: ``{"signature":"<64 hex digits>",
...}``. The signature is HMAC-SHA-256 (RFC 2104) of a label that identifies the document, a zero byte, and the JSON
without that field.
"""

import hmac
import re
from hashlib import sha256

from omnibus.errors import ProtocolError

_SIGNED = re.compile(rb'\{"signature":"([0-9a-f]{64})",')


class Seal:
    """Signs with ``secret`` and rejects other signatures. Without a secret it does neither."""

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()

    def sign(self, label: str, document: bytes) -> str:
        """Return the JSON object ``document`` in its stored form, with the signature."""
        if not self._key:
            return document.decode()
        return f'{{"signature":"{self._compute_signature(label, document)}",{document[1:].decode()}'

    def verify(self, label: str, text: bytes) -> bytes:
        """Return the document of a stored ``text``. Raises ``ProtocolError`` if its signature is invalid."""
        signature_match = _SIGNED.match(text)
        document = b"{" + text[signature_match.end() :] if signature_match else text
        if not self._key:
            return document
        if signature_match is None:
            raise ProtocolError(f"{label} in the store is not signed: rejected, since OMNIBUS_STORE_SECRET is set")
        if not hmac.compare_digest(signature_match[1].decode(), self._compute_signature(label, document)):
            raise ProtocolError(f"{label} in the store is not signed with this OMNIBUS_STORE_SECRET: rejected")
        return document

    def _compute_signature(self, label: str, document: bytes) -> str:
        return hmac.new(self._key, b"%b\0%b" % (label.encode(), document), sha256).hexdigest()
