"""Shares of tenants in the capacity of a gateway and its store."""

from omnibus.settings import GatewaySettings
from omnibus.store import OVERHEAD_BYTES, BackgroundPlaces, JobRecord, JobRules, Store, TenantAccount
from omnibus_gateway.tenancy.tenant import current_tenant


def tenant_share(settings: GatewaySettings, total: int, tenant: str) -> int:
    """Return the most of ``total`` that ``tenant`` may have; all of it without tenants."""
    return max(1, int(total * settings.tenant_share)) if tenant else total


def tenant_account(settings: GatewaySettings, tenant: str | None = None) -> TenantAccount:
    """Return the store account of ``tenant``, by default of the current one.

    Without keys there is one account, with the room of all the tenants that would fill it.
    """
    name = current_tenant().name if tenant is None else tenant
    most = settings.tenant_bytes if name else int(settings.tenant_bytes / min(1.0, settings.tenant_share))
    return TenantAccount(name, most)


def background_places(settings: GatewaySettings, tenant: str) -> BackgroundPlaces:
    """Return the limits of background responses: of all tenants, and of ``tenant``."""
    return BackgroundPlaces(settings.responses_open, tenant_share(settings, settings.responses_open, tenant))


async def put_counted_job(
    settings: GatewaySettings, store: Store, kind: str, job: JobRecord, most_open: int, most_kept: int
) -> None:
    """Add ``job``, whose request counts toward the bytes of its tenant.

    Raises ``LimitReached``, and ``Overloaded`` if all tenants together, or this one, have too many jobs.
    """
    account, member = tenant_account(settings, job.tenant), f"job:{kind}:{job.id}"
    shares = (tenant_share(settings, each, job.tenant) if job.tenant else 0 for each in (most_open, most_kept))
    await store.reserve(account, member, len(job.request) + OVERHEAD_BYTES, job.expires - job.created)
    try:
        await store.put_job(kind, job, JobRules(most_open, most_kept, *shares))
    except BaseException:
        await store.release(account.name, member)
        raise
