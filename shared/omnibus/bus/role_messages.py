"""The message that gives an executor another role of its model, see ``omnibus.cluster.roles``."""

import msgspec

from omnibus.bus.messages import decode_message
from omnibus.graph import WIRE_VERSION

#: What is answered to an assignment that is taken; any other answer is its problem.
TAKEN = b"{}"


class RoleAssignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Role that an executor takes instead of its own: an option of its model, and the components that it runs.

    ``tasks`` are their unit tasks in the same order, none: named after the family's kinds. ``origin`` is
    ``ModelPlan.option_origin`` of the option.
    """

    option: str
    origin: str
    components: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    v: int = WIRE_VERSION


_decode = msgspec.json.Decoder(RoleAssignment).decode


def decode_role(body: bytes) -> RoleAssignment:
    """Raises ``ProtocolError``."""
    role: RoleAssignment = decode_message(_decode, body, "role")
    return role
