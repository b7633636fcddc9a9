"""Client secrets: short-lived keys that a server passes to a browser instead of its API key."""

import msgspec

from omnibus.errors import ProtocolError
from omnibus.store.connection import StoreConnection

#: Prefix of client secrets.
SECRET_PREFIX = "ek_"  # noqa: S105 no secret by itself


class ClientSecretRecord(msgspec.Struct, frozen=True):
    """Record of a secret: the SHA-256 of the API ``key`` that made it, and its session.

    ``session`` is the JSON of a session update, ``expires`` in Unix seconds. ``is_operators`` marks a secret made with
    the admin token of a gateway that requires keys.
    """

    session: bytes
    expires: float
    key: str = ""
    is_operators: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ClientSecretRecord).decode


class ClientSecretStore(StoreConnection):
    """Client secrets by their SHA-256."""

    async def put_client_secret(self, sha256: str, record: ClientSecretRecord, seconds: float) -> None:
        """Store ``record`` for ``seconds``."""
        await self._run_command(
            self._redis.set(self._redis_key(f"secret:{sha256}"), _encode(record), px=max(1, round(seconds * 1000)))
        )

    async def client_secret(self, sha256: str) -> ClientSecretRecord | None:
        """Return the record, or None if it is unknown or has expired.

        Raises ``ProtocolError`` if it cannot be read.
        """
        body = await self._run_command(self._redis.get(self._redis_key(f"secret:{sha256}")))
        try:
            return _decode(body) if body is not None else None
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a client secret has a format that this version cannot read: {error}") from error
