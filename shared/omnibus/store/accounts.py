"""Accounts of what each tenant holds in the store: a limit is checked and its account updated in one step."""

from typing import NamedTuple

from omnibus.errors import LimitReached, OmnibusError, Overloaded
from omnibus.store.connection import FunctionRefused, StoreConnection

#: Bytes that each document counts for besides its own: names, expiry times and what the server needs to find it.
OVERHEAD_BYTES = 256
#: Seconds until a client may try again that was rejected because as much is under way as may be.
_RETRY_AFTER_SECONDS = 10.0


class TenantAccount(NamedTuple):
    """The account of the tenant ``name``, which may hold ``bytes``; 0: no limit."""

    name: str = ""
    bytes: int = 0


class AccountTotal(NamedTuple):
    """Members of one kind that an account holds, and the bytes of all its members."""

    members: int
    bytes: int


NO_LIMIT = TenantAccount()


class AccountStore(StoreConnection):
    """Accounts of tenants. A member is ``<kind>:<id>``."""

    async def reserve(
        self, account: TenantAccount, member: str, nbytes: int, seconds: float, most: int = 0
    ) -> AccountTotal:
        """Hold ``nbytes`` for ``member`` until it is released or ``seconds`` are over; at most ``most`` of its kind.

        Raises ``LimitReached``, and ``Overloaded`` where ``most`` members of the kind are held.
        """
        arguments = (member, str(nbytes), milliseconds_text(seconds), str(most), str(account.bytes))
        try:
            found = await self._run_known_function("omnibus_reserve", account_keys(account.name), *arguments)
        except FunctionRefused as error:
            raise limit_error(error, account, member.partition(":")[0]) from error
        return AccountTotal(int(found[0]), int(found[1]))

    async def release(self, account: str, *members: str) -> int:
        """Hold ``members`` of the account ``account`` no longer; returns how many were held."""
        return int(await self._run_known_function("omnibus_release", account_keys(account), *members))


def account_keys(tenant: str) -> tuple[str, str]:
    """The keys of an account: its members by when they expire, and their bytes."""
    return f"held:{tenant}", f"held:{tenant}:bytes"


def milliseconds_text(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def limit_error(error: FunctionRefused, account: TenantAccount, kind: str) -> OmnibusError:
    """The error for a client that reached the limit which the server named."""
    if error.what == "bytes":
        return LimitReached(
            f"what is stored for you would take more than {account.bytes} bytes (OMNIBUS_GATEWAY_TENANT_BYTES): delete "
            "responses, conversations or jobs, or wait until they expire"
        )
    if error.what in ("open", "tenant_open"):
        yours = " of your" if error.what == "tenant_open" else ""
        return Overloaded(
            f"as many{yours} responses are made in the background as there may be: wait for one, or cancel one",
            retry_after=_RETRY_AFTER_SECONDS,
            reason="background",
        )
    return Overloaded(
        f"as many of your {kind} entries are kept as there may be: wait until one expires",
        retry_after=_RETRY_AFTER_SECONDS,
        reason=kind,
    )
