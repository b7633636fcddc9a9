"""The handshake of two sidecars: each proves that it has the secret, or shows its node's certificate."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

from omnibus.errors import ProtocolError, Unauthorized
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
