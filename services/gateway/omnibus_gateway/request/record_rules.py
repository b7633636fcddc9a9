"""Rules for records, by tenant: content of requests, or only sizes and digests."""

from collections.abc import Mapping
from types import MappingProxyType

from omnibus import api_key
from omnibus.errors import BadRequest

#: Values of ``OMNIBUS_GATEWAY_RECORD``; see ``GatewaySettings.record``.
MODES = ("full", "stages", "digest")
#: Values for one tenant; outputs between stages are recorded for all tenants or none.
TENANT_MODES = ("full", "digest")
_VARIABLE = "OMNIBUS_GATEWAY_RECORD_TENANTS"


class RecordRules:
    """Decides whose content is recorded: everyone's if ``full``, with exceptions for ``tenants``."""

    def __init__(self, full: bool, tenants: Mapping[str, bool] = MappingProxyType({})) -> None:
        self.full = full
        self._tenants = dict(tenants)

    @property
    def any_full(self) -> bool:
        """True if any request's content is recorded."""
        return self.full or any(self._tenants.values())

    def keeps_content(self, tenant: str) -> bool:
        """Return True if content of ``tenant`` is recorded; it is empty for requests without a key."""
        return self._tenants.get(tenant, self.full)

    def may_keep_letter(self, tenant: str) -> bool:
        """Return True if dead letters of ``tenant`` may include its inputs.

        That also requires the setting for dead letters.
        """
        return self._tenants.get(tenant, True)


def parse_record_rules(mode: str, tenants: str) -> RecordRules:
    """Parse the settings ``record`` and ``record_tenants``. Raises ``BadRequest`` with the variable."""
    if mode not in MODES:
        raise BadRequest(f"OMNIBUS_GATEWAY_RECORD={mode!r} must be one of {', '.join(MODES)}")
    return RecordRules(mode != "digest", dict(_parse_rule(each.strip()) for each in tenants.split(",") if each.strip()))


def _parse_rule(text: str) -> tuple[str, bool]:
    tenant, _, mode = text.partition("=")
    if not api_key.TENANT.fullmatch(tenant) or mode not in TENANT_MODES:
        expected_text = " or ".join(f"TENANT={each}" for each in TENANT_MODES)
        raise BadRequest(f"{_VARIABLE}: {text[:80]!r} must be {expected_text}, with commas between several")
    return tenant, mode == "full"
