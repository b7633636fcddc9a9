"""Room for files that are on their way: reserved before it is known whether they fit, until they are among the others.

All gateways reserve in the store, so uploads side by side cannot pass a limit together: of two of them the second one
sees the reservation of the first, or its file. While the store is away each gateway counts what comes to it.
"""

import logging
import time
from collections import defaultdict
from typing import NamedTuple

from omnibus.errors import LimitReached, StoreUnavailable
from omnibus.store import AccountTotal, Store, TenantAccount
from services.gateway.tenancy.tenant import current_tenant

log = logging.getLogger(__name__)


class FileRoom:
    """Reservations of the tenant that is being served, in ``store`` where there is one.

    Those for ``upload`` are of the parts of that upload, whose limit is what its client announced.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._here: dict[str, dict[str, _Reservation]] = defaultdict(dict)  # by account and member

    async def reserve(
        self, member: str, nbytes: int, seconds: float, most: int = 0, upload: str = "", limit: int = 0
    ) -> AccountTotal:
        """Reserve ``nbytes`` for ``member``; returns what is reserved now, this included.

        Raises ``Overloaded`` where ``most`` members of its kind are reserved, and ``LimitReached`` beyond ``limit``.
        """
        account = TenantAccount(_account_name(upload), limit)
        total = self._reserve_here(account, member, _Reservation(nbytes, time.monotonic() + seconds))
        if self._store is None:
            return total
        try:
            return await self._store.reserve(account, member, nbytes, seconds, most)
        except StoreUnavailable as error:
            log.warning("room for files is counted at this gateway alone: %s", error)
            return total
        except BaseException:
            self._release_here(account.name, member)
            raise

    async def release(self, member: str, upload: str = "") -> None:
        """Reserve nothing for ``member`` any more: it is among the files, or will not be."""
        name = _account_name(upload)
        self._release_here(name, member)
        if self._store is not None:
            try:
                await self._store.release(name, member)
            except StoreUnavailable as error:
                log.warning("room for a file stays reserved until that expires: %s", error)

    def _reserve_here(self, account: TenantAccount, member: str, reservation: "_Reservation") -> AccountTotal:
        now = time.monotonic()
        before = self._here[account.name]
        own = {name: each for name, each in before.items() if each.until > now and name != member}
        total = AccountTotal(len(own) + 1, sum(each.nbytes for each in own.values()) + reservation.nbytes)
        if account.bytes and total.bytes > account.bytes:
            raise LimitReached(f"{total.bytes} bytes would be kept, and {account.bytes} may be")
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
    """The account of a tenant's files, or of one upload: no tenant is called that, and files are not in the store."""
    return f"{current_tenant().name}/files/{upload}".rstrip("/")
