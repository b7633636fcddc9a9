"""Rules for records, by tenant: content of requests, or sizes and digests alone."""

from collections.abc import Mapping
from types import MappingProxyType

from omnibus import api_key
from omnibus.errors import BadRequest

#: What ``OMNIBUS_GATEWAY_RECORD`` may be; see ``GatewaySettings.record``.
MODES = ("full", "stages", "digest")
#: What it may be for a tenant; what stages give each other is recorded of all tenants or of none.
TENANT_MODES = ("full", "digest")
_VARIABLE = "OMNIBUS_GATEWAY_RECORD_TENANTS"


class RecordRules:
    """Says of whose requests content is recorded: of all (``full``), but for ``tenants`` with a rule of their own."""

    def __init__(self, full: bool, tenants: Mapping[str, bool] = MappingProxyType({})) -> None:
        self.full = full
        self._tenants = dict(tenants)

    @property
    def any_full(self) -> bool:
        """True where content of any request is recorded."""
        return self.full or any(self._tenants.values())

    def keeps_content(self, tenant: str) -> bool:
        """Return whether content of requests of ``tenant`` is recorded; it is empty for requests without a key."""
        return self._tenants.get(tenant, self.full)

    def may_keep_letter(self, tenant: str) -> bool:
        """Return whether dead letters of ``tenant`` may have its inputs, where the setting says that letters have."""
        return self._tenants.get(tenant, True)


def parse_record_rules(mode: str, tenants: str) -> RecordRules:
    """The rules of the settings ``record`` and ``record_tenants``. Raises ``BadRequest`` that names the variable."""
    if mode not in MODES:
        raise BadRequest(f"OMNIBUS_GATEWAY_RECORD={mode!r}: it is one of {', '.join(MODES)}")
    return RecordRules(mode != "digest", dict(_parse_rule(each.strip()) for each in tenants.split(",") if each.strip()))


def _parse_rule(text: str) -> tuple[str, bool]:
    tenant, _, mode = text.partition("=")
    if not api_key.TENANT.fullmatch(tenant) or mode not in TENANT_MODES:
        expected = " or ".join(f"TENANT={each}" for each in TENANT_MODES)
        raise BadRequest(f"{_VARIABLE}: {text[:80]!r}: {expected} is expected, with commas between several")
    return tenant, mode == "full"
