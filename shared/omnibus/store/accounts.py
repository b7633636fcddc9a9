"""Accounts of tenants in the store: one step checks a limit and updates the account."""

from typing import NamedTuple

from omnibus.errors import LimitReached, OmnibusError, Overloaded
from omnibus.store.connection import FunctionRefused, StoreConnection

#: Bytes that each document counts in addition to its own: names, expiry times and the server's index entries.
OVERHEAD_BYTES = 256
#: Seconds until a client may retry that was rejected because too many responses are in progress.
_RETRY_AFTER_SECONDS = 10.0


class TenantAccount(NamedTuple):
    """Account of the tenant ``name``, with a limit of ``bytes`` (0: none)."""

    name: str = ""
    bytes: int = 0


class AccountTotal(NamedTuple):
    """Number of members of one kind, and bytes of all members."""

    members: int
    bytes: int


NO_LIMIT = TenantAccount()


class AccountStore(StoreConnection):
    """Accounts of tenants. A member is ``<kind>:<id>``."""

    async def reserve(
        self, account: TenantAccount, member: str, nbytes: int, seconds: float, most: int = 0
    ) -> AccountTotal:
        """Reserve ``nbytes`` for ``member`` until its release, or for ``seconds``.

        At most ``most`` members of its kind may be reserved. Raises ``LimitReached``, and ``Overloaded`` if ``most`` is
        reached.
        """
        arguments = (member, str(nbytes), milliseconds_text(seconds), str(most), str(account.bytes))
        try:
            reply = await self._run_known_function("omnibus_reserve", account_keys(account.name), *arguments)
        except FunctionRefused as error:
            raise limit_error(error, account, member.partition(":")[0]) from error
        return AccountTotal(int(reply[0]), int(reply[1]))

    async def release(self, account: str, *members: str) -> int:
        """Release ``members`` of the account ``account``; return how many it had."""
        return int(await self._run_known_function("omnibus_release", account_keys(account), *members))


def account_keys(tenant: str) -> tuple[str, str]:
    """Return the keys of an account: its members by expiry time, and their bytes."""
    return f"held:{tenant}", f"held:{tenant}:bytes"


def milliseconds_text(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def limit_error(error: FunctionRefused, account: TenantAccount, kind: str) -> OmnibusError:
    """Return the client's error for the limit named by the server."""
    if error.what == "bytes":
        return LimitReached(
            f"your stored data would exceed {account.bytes} bytes (OMNIBUS_GATEWAY_TENANT_BYTES): delete responses, "
            "conversations or jobs, or wait until they expire"
        )
    if error.what in ("open", "tenant_open"):
        yours = " of your" if error.what == "tenant_open" else ""
        return Overloaded(
            f"too many{yours} background responses are in progress: wait for one to end, or cancel one",
            retry_after=_RETRY_AFTER_SECONDS,
            reason="background",
        )
    return Overloaded(
        f"too many of your {kind} entries are stored: wait until one expires",
        retry_after=_RETRY_AFTER_SECONDS,
        reason=kind,
    )
