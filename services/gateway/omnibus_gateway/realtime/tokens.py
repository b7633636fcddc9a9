"""Tokens of realtime sessions: client secrets that open them from browsers, and tokens that resume them."""

import time
from secrets import compare_digest, token_hex, token_urlsafe
from typing import Any, NamedTuple

from omnibus.api_key import hash_key
from omnibus.errors import BadRequest, NotFound, Unauthorized
from omnibus.recording.sessions import SessionOrigin
from omnibus.settings import GatewaySettings
from omnibus.store import OVERHEAD_BYTES, SECRET_PREFIX, ClientSecretRecord, Store
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.realtime.session import (
    ClientSecret,
    ClientSecretRequest,
    SecretExpiry,
    SessionUpdate,
    decode_update,
    encode_update,
)
from omnibus_gateway.tenancy.tenant import current_tenant, tenant_account

#: Maximum number of valid client secrets of one tenant.
MAX_SECRETS = 1000


class ClientSecrets:
    """Creates and reads client secrets in the ``store``."""

    def __init__(self, settings: GatewaySettings, store: Store) -> None:
        self._settings = settings
        self._asks_for_keys = settings.keys or bool(settings.keys_file)
        self._store = store

    async def create(self, request: ClientSecretRequest, session_view: dict[str, Any]) -> ClientSecret:
        """Create a secret of the current tenant; ``session_view`` is its session for the response.

        Raises ``StoreUnavailable``, and ``Overloaded`` and ``LimitReached`` if the tenant has no room for it.
        """
        seconds = (request.expires_after or SecretExpiry()).seconds
        key, value = current_tenant().key, new_secret_id(SECRET_PREFIX)
        record = ClientSecretRecord(
            session=encode_update(request.session or SessionUpdate(type="realtime")),
            expires=time.time() + seconds,
            key=key.sha256 if key is not None else "",
            is_operators=self._asks_for_keys and key is None,
        )
        await self._store.reserve(
            tenant_account(self._settings),
            f"secret:{hash_key(value)[:24]}",
            len(record.session) + OVERHEAD_BYTES,
            seconds,
            MAX_SECRETS,
        )
        await self._store.put_client_secret(hash_key(value), record, seconds)
        return ClientSecret(value, int(record.expires), session_view)

    async def find_update(self, token: str) -> SessionUpdate | None:
        """Return the first update of sessions of ``token``; None if it is an API key.

        Raises ``Unauthorized`` for a secret that is unknown or expired.
        """
        if not token.startswith(SECRET_PREFIX):
            return None
        record = await self._store.client_secret(hash_key(token))
        if record is None:
            raise Unauthorized("this client secret is unknown or expired: create another one")
        return decode_update(record.session)


_UNKNOWN = "the session of this token is unknown or has expired: open another one"


class ResumeToken(NamedTuple):
    """Session ``id`` and the secret that authorizes its client."""

    id: str
    secret: str

    @classmethod
    def create(cls) -> "ResumeToken":
        return cls(new_session_id(), token_urlsafe(18))

    @classmethod
    def parse(cls, text: str) -> "ResumeToken":
        """Parse a token. Raises ``NotFound``."""
        id, _, secret = text.partition(".")
        if not id.startswith("sess_") or not secret:
            raise NotFound(_UNKNOWN, param="resume")
        return cls(id, secret)

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}"

    def check_opens(self, origin: SessionOrigin) -> None:
        """Raise ``NotFound`` if the session began with another token."""
        if not compare_digest(hash_key(str(self)), origin.token_sha256):
            raise NotFound(_UNKNOWN, param="resume")


def new_session_id() -> str:
    """Create an id for a session."""
    return f"sess_{token_hex(12)}"


def event_id(session: str, number: int) -> str:
    """Return the id of event ``number`` of ``session``, counted from 1."""
    return f"event_{session.removeprefix('sess_')}_{number}"


def parse_event_number(session: str, id: str, last: int) -> int:
    """Return the number of event ``id`` of ``session``, at most ``last``. Raises ``BadRequest``."""
    head, _, number = id.rpartition("_")
    if head != event_id(session, 0).rpartition("_")[0] or not number.isdecimal() or not 1 <= int(number) <= last:
        raise BadRequest(
            "last_event_id must be the event_id of the last event of this session that you read.", param="last_event_id"
        )
    return int(number)
