"""Message that assigns an executor another role, see ``omnibus.cluster.roles``."""

import msgspec

from omnibus.bus.messages import decode_message
from omnibus.graph import WIRE_VERSION

#: Answer to an accepted assignment; any other answer is its problem.
TAKEN = b"{}"


class RoleAssignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New role of an executor: an option of its model, and the components to run.

    ``tasks`` are their unit tasks in the same order. Without any, they are named after the family's kinds. ``origin``
    is ``ModelPlan.option_origin`` of the option.
    """

    option: str
    origin: str
    components: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    v: int = WIRE_VERSION


_decode = msgspec.json.Decoder(RoleAssignment).decode


def decode_role(body: bytes) -> RoleAssignment:
    """Decode a role assignment. Raises ``ProtocolError``."""
    role: RoleAssignment = decode_message(_decode, body, "role")
    return role
