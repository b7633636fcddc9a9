"""Reservations of room for files, until they are stored.

All gateways reserve in the store, so concurrent uploads cannot exceed a limit together: a later upload sees the
earlier reservation or file. While the store is unavailable, each gateway counts its own uploads.
"""

import logging
import time
from collections import defaultdict
from typing import NamedTuple

from omnibus.errors import LimitReached, StoreUnavailable
from omnibus.store import AccountTotal, Store, TenantAccount
from omnibus_gateway.tenancy.tenant import current_tenant

log = logging.getLogger(__name__)


class FileRoom:
    """Reservations of the current tenant, in ``store`` if there is one.

    A reservation for ``upload`` is for a part of that upload, and is limited by the upload's announced size.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._here: dict[str, dict[str, _Reservation]] = defaultdict(dict)  # by account and member

    async def reserve(
        self, member: str, nbytes: int, seconds: float, most: int = 0, upload: str = "", limit: int = 0
    ) -> AccountTotal:
        """Reserve ``nbytes`` for ``member``. Returns the total of all reservations.

        Raises ``Overloaded`` if ``most`` members of its kind are reserved, and ``LimitReached`` above ``limit`` bytes.
        """
        account = TenantAccount(_account_name(upload), limit)
        total = self._reserve_here(account, member, _Reservation(nbytes, time.monotonic() + seconds))
        if self._store is None:
            return total
        try:
            return await self._store.reserve(account, member, nbytes, seconds, most)
        except StoreUnavailable as error:
            log.warning("room for files is only counted at this gateway: %s", error)
            return total
        except BaseException:
            self._release_here(account.name, member)
            raise

    async def release(self, member: str, upload: str = "") -> None:
        """Release the reservation of ``member``, which is stored or has failed."""
        name = _account_name(upload)
        self._release_here(name, member)
        if self._store is not None:
            try:
                await self._store.release(name, member)
            except StoreUnavailable as error:
                log.warning("room for a file stays reserved until the reservation expires: %s", error)

    def _reserve_here(self, account: TenantAccount, member: str, reservation: "_Reservation") -> AccountTotal:
        now = time.monotonic()
        before = self._here[account.name]
        own = {name: each for name, each in before.items() if each.until > now and name != member}
        total = AccountTotal(len(own) + 1, sum(each.nbytes for each in own.values()) + reservation.nbytes)
        if account.bytes and total.bytes > account.bytes:
            raise LimitReached(f"{total.bytes} bytes would be stored, and the limit is {account.bytes}")
        self._here[account.name] = {**own, member: reservation}
        return total

    def _release_here(self, account: str, member: str) -> None:
        self._here[account].pop(member, None)
        if not self._here[account]:
            del self._here[account]


class _Reservation(NamedTuple):
    nbytes: int
    until: float


def _account_name(upload: str) -> str:
    """Return the account of a tenant's files or of one upload. It differs from all names of tenants."""
    return f"{current_tenant().name}/files/{upload}".rstrip("/")
