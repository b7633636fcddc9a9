"""A Lease of the cluster: of several planners, one alone starts and stops executors.

Two would revert one another's work if their templates differ, as during an upgrade.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from omnibus.errors import OmnibusError
from omnibus_planner.reconcile.kube_client import ClusterRefused, KubernetesClient

log = logging.getLogger(__name__)

#: Returns the owner of a Lease, as one of its ``ownerReferences``.
Owner = Callable[[], Awaitable[dict[str, Any] | None]]
#: Seconds until a silent holder loses the lease; until the holder itself gives up; between two attempts.
LEASE_DURATION_SECONDS, RENEW_DEADLINE_SECONDS, RETRY_PERIOD_SECONDS = 15.0, 10.0, 3.0
_NOT_FOUND = 404


class LeaderLease:
    """One planner's view of the Lease: ``is_leader`` until ``RENEW_DEADLINE_SECONDS`` seconds after its last renewal.

    Clocks of other machines do not matter.
    """

    def __init__(self, cluster: KubernetesClient, name: str, owner: Owner, me: str = "") -> None:
        self.me = me or f"{socket.gethostname()}_{secrets.token_hex(4)}"
        self._cluster = cluster
        self._name = name
        self._owner = owner
        self._root = f"/apis/coordination.k8s.io/v1/namespaces/{quote(cluster.namespace, safe='')}/leases"
        self._until = 0.0
        #: Error that hides which planner leads; None if there is none.
        self.trouble: OmnibusError | None = None
        self._seen: tuple[str, float] = ("", 0.0)  # the other's last spec, and when it was first read

    @property
    def is_leader(self) -> bool:
        return time.monotonic() < self._until

    async def run(self, tell: Callable[[], None]) -> None:
        """Acquire and renew the lease until cancelled, then release it; ``tell`` is called on changes."""
        try:
            while True:
                before = (self.is_leader, self.trouble is None)
                try:
                    await self.acquire_or_renew()
                    self.trouble = None
                except OmnibusError as error:
                    log.warning("the lease %s: %s", self._name, error)
                    self.trouble = error
                if before[0] != self.is_leader:
                    log.info("this planner %s", "starts and stops executors" if self.is_leader else "no longer leads")
                if before != (self.is_leader, self.trouble is None):
                    tell()
                await asyncio.sleep(RETRY_PERIOD_SECONDS)
        finally:
            await self._release_lease()

    async def acquire_or_renew(self) -> bool:
        """Acquire a free lease, or renew our own; True if it is ours now. Raises as ``KubernetesClient``."""
        request_time = time.monotonic()
        lease = await self._find()
        if lease is None:
            owner = await self._owner()
            meta = {"name": self._name, **({"ownerReferences": [owner]} if owner else {})}
            manifest = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            call = ("POST", self._root, {**manifest, "spec": self._build_spec({}, self.me)})
        elif self._is_available(lease):
            call = ("PUT", f"{self._root}/{self._name}", {**lease, "spec": self._build_spec(lease["spec"], self.me)})
        else:
            self._until = 0.0
            return False
        await self._cluster.request_json(*call)  # rejected if another planner was faster
        self._until = request_time + RENEW_DEADLINE_SECONDS
        return True

    async def _find(self) -> dict[str, Any] | None:
        try:
            return await self._cluster.request_json("GET", f"{self._root}/{self._name}")
        except ClusterRefused as error:
            if error.answer != _NOT_FOUND:
                raise
            return None

    def _is_available(self, lease: dict[str, Any]) -> bool:
        spec = lease.setdefault("spec", {})
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self.me):
            return True
        word = f"{holder} {spec.get('renewTime')}"
        if word != self._seen[0]:
            self._seen = (word, time.monotonic())
        return time.monotonic() > self._seen[1] + float(spec.get("leaseDurationSeconds") or LEASE_DURATION_SECONDS)

    def _build_spec(self, before: dict[str, Any], holder: str) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changes = holder != before.get("holderIdentity")
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(LEASE_DURATION_SECONDS),
            "acquireTime": now if changes else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (changes and bool(before)),
        }

    async def _release_lease(self) -> None:
        """Release the lease, so that another planner can acquire it at once."""
        if not self.is_leader:
            return
        self._until = 0.0
        try:
            lease = await self._find()
            if lease is not None and lease.get("spec", {}).get("holderIdentity") == self.me:
                await self._cluster.request_json(
                    "PUT", f"{self._root}/{self._name}", {**lease, "spec": self._build_spec(lease["spec"], "")}
                )
        except OmnibusError as error:
            log.info("the lease %s was not released: %s", self._name, error)
