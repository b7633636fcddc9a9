"""The secret and the certificates by which nodes authenticate each other."""

import ssl
from pathlib import Path

from omnibus.errors import BadRequest

#: Shorter secrets can be guessed.
MIN_SECRET_BYTES = 16


def read_secret(path: str) -> bytes:
    """Return the secret in the file at ``path``, without surrounding whitespace. Raises ``BadRequest``."""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise BadRequest(f"OMNIBUS_SIDECAR_SECRET_FILE={path} cannot be read: {error.strerror}") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise BadRequest(
            f"the secret in OMNIBUS_SIDECAR_SECRET_FILE={path} has {len(secret)} bytes; use {MIN_SECRET_BYTES} or "
            "more, for example of `openssl rand -hex 32`"
        )
    return secret


def load_tls(ca: str, certificate: str, key: str) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Return contexts for dialling and listening, both with mutual TLS 1.3; None and None without files.

    The handshake compares the name in a certificate with that of the node; it does not compare addresses. Raises
    ``BadRequest`` if only some of the files are named, or a file cannot be used.
    """
    files = (ca, certificate, key)
    if not any(files):
        return None, None
    if not all(files):
        raise BadRequest("TLS between nodes needs OMNIBUS_SIDECAR_TLS_CA, _CERT and _KEY: set all three, or none")
    try:
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
        for context in (client, server):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(f"the certificates of OMNIBUS_SIDECAR_TLS_* cannot be used: {error}") from error
    client.check_hostname = False
    server.verify_mode = ssl.CERT_REQUIRED
    return client, server
