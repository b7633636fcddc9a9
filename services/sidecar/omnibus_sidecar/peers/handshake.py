"""The handshake of two sidecars: each proves that it has the secret, or shows its node's certificate.

Connections in their handshake: the limits, and which one is evicted for the next.

The secret and the certificates by which nodes authenticate each other.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from omnibus.errors import BadRequest, ProtocolError, Unauthorized
from omnibus.tensors.peer_protocol import (
    PeerFrame,
    PeerGreeting,
    PeerVerb,
    PeerWelcome,
    decode_greeting,
    decode_welcome,
    decode_words,
    is_proof,
    make_proof,
)
from omnibus_sidecar.peers.stream import PeerStream, read_frame, read_text, write_frame, write_text
from omnibus_sidecar.peers.tls_stream import TlsStream

CONTROL, DATA = "control", "data"
_DIALLER, _LISTENER = "dialler", "listener"
_NONCE_BYTES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerIdentity:
    """Identity of this node towards others. ``tls_client`` and ``tls_server`` are both None or both set."""

    node: str
    boot: int
    secret: bytes = b""
    tls_client: ssl.SSLContext | None = None
    tls_server: ssl.SSLContext | None = None

    def greet(self, purpose: str) -> PeerGreeting:
        """Return a greeting that was never sent before."""
        return PeerGreeting(self.node, self.boot, token_hex(_NONCE_BYTES), purpose)


async def greet_listener(stream: PeerStream, own: PeerIdentity, node: str, purpose: str) -> PeerGreeting:
    """Introduce this node on a connection that it opened to ``node``; returns the listener's greeting.

    Raises ``Unauthorized`` if either side rejects the other, and ``ProtocolError`` if the other side is not a sidecar.
    """
    greeting = own.greet(purpose)
    await write_text(stream, PeerVerb.HELLO, greeting)
    welcome = decode_welcome(await _expect_text(stream, PeerVerb.WELCOME))
    listener = welcome.greeting
    _check_certificate(stream, listener.node)
    if listener.node != node or not is_proof(welcome.proof, own.secret, _LISTENER, greeting, listener):
        raise Unauthorized(f"the sidecar at the address of node {node!r} is {listener.node!r}, or has another secret")
    await write_text(stream, PeerVerb.PROVE, make_proof(own.secret, _DIALLER, greeting, listener))
    frame = await read_frame(stream)
    if frame.verb != PeerVerb.READY:
        raise await _refusal_error(stream, frame)
    return listener


async def greet_dialler(stream: PeerStream, own: PeerIdentity, on_refusal: Callable[[str], None]) -> PeerGreeting:
    """Answer the greeting of another sidecar; returns that greeting.

    Raises as ``greet_listener`` does. ``on_refusal`` is called with the reason, which is also sent to the other side.
    """
    try:
        greeting = decode_greeting(await _expect_text(stream, PeerVerb.HELLO))
        listener = own.greet(greeting.purpose)
        await write_text(
            stream, PeerVerb.WELCOME, PeerWelcome(listener, make_proof(own.secret, _LISTENER, greeting, listener))
        )
        proof = decode_words(await _expect_text(stream, PeerVerb.PROVE))
        _check_certificate(stream, greeting.node)
        if not is_proof(proof, own.secret, _DIALLER, greeting, listener):
            raise Unauthorized(f"node {greeting.node!r} has another secret")
    except (ProtocolError, Unauthorized) as error:
        on_refusal(error.code)
        await write_text(stream, PeerVerb.REFUSED, error.message[:1000])
        raise
    await write_frame(stream, PeerFrame(PeerVerb.READY))
    return greeting


async def _expect_text(stream: PeerStream, verb: PeerVerb) -> bytes:
    frame = await read_frame(stream)
    if frame.verb != verb:
        raise await _refusal_error(stream, frame)
    return await read_text(stream, frame.nbytes)


async def _refusal_error(stream: PeerStream, frame: PeerFrame) -> ProtocolError | Unauthorized:
    if frame.verb != PeerVerb.REFUSED:
        return ProtocolError(f"verb {frame.verb} is not part of a handshake")
    return Unauthorized(f"the other sidecar rejects this node: {decode_words(await read_text(stream, frame.nbytes))}")


def _check_certificate(stream: PeerStream, node: str) -> None:
    if isinstance(stream, TlsStream) and node not in stream.peer_names:
        raise Unauthorized(f"the certificate names {', '.join(sorted(stream.peer_names)) or 'no node'}, not {node!r}")


#: Most concurrent handshakes in total and from one address: strangers cannot occupy more.
MAX_HANDSHAKES, MAX_ADDRESS_HANDSHAKES = 64, 16


class Handshakes:
    """Tasks that greet other nodes, by the peer's address, oldest first.

    A handshake takes milliseconds, so at a limit the oldest task is cancelled. It is of the same address as the new
    connection if that address is at its limit, else of the address with the most. A valid handshake therefore succeeds
    even with many silent connections. ``refusal_counts`` counts the cancelled ones.
    """

    def __init__(self, refusal_counts: Counter[str]) -> None:
        self._refused = refusal_counts
        self._addresses: dict[asyncio.Task[Any], str] = {}

    @contextmanager
    def admit(self, address: str, task: asyncio.Task[Any]) -> Iterator[None]:
        """Count ``task`` from ``address`` while the block lasts."""
        counts = Counter(self._addresses.values())
        if counts[address] >= MAX_ADDRESS_HANDSHAKES:
            self._evict_oldest(address)
        elif counts.total() >= MAX_HANDSHAKES:
            self._evict_oldest(counts.most_common(1)[0][0])
        self._addresses[task] = address
        try:
            yield
        finally:
            self._addresses.pop(task, None)

    def _evict_oldest(self, address: str) -> None:
        task = next(each for each, where in self._addresses.items() if where == address)
        del self._addresses[task]
        self._refused["busy"] += 1
        task.cancel()


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
