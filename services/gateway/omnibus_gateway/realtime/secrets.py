"""Client secrets: a server creates one per browser, which opens sessions with it at any gateway."""

import time
from typing import Any

from omnibus.api_key import hash_key
from omnibus.errors import Unauthorized
from omnibus.settings import GatewaySettings
from omnibus.store import OVERHEAD_BYTES, SECRET_PREFIX, ClientSecretRecord, Store
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.realtime.client_secrets import (
    ClientSecret,
    ClientSecretRequest,
    SecretExpiry,
    decode_update,
    encode_update,
)
from omnibus_gateway.openai.realtime.session import SessionUpdate
from omnibus_gateway.tenancy.shares import tenant_account
from omnibus_gateway.tenancy.tenant import current_tenant

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
