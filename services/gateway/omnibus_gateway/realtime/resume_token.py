"""Resume token of a session, and the numbers in its event ids."""

from secrets import compare_digest, token_hex, token_urlsafe
from typing import NamedTuple

from omnibus.api_key import hash_key
from omnibus.errors import BadRequest, NotFound
from omnibus.recording.sessions import SessionOrigin

_UNKNOWN = "the session of this token is unknown or has expired: open another one"


class ResumeToken(NamedTuple):
    """Session ``id`` and the secret that authorizes its client."""

    id: str
    secret: str

    @classmethod
    def create(cls) -> "ResumeToken":
        return cls(new_session_id(), token_urlsafe(18))

    @classmethod
    def parse(cls, text: str) -> "ResumeToken":
        """Parse a token. Raises ``NotFound``."""
        id, _, secret = text.partition(".")
        if not id.startswith("sess_") or not secret:
            raise NotFound(_UNKNOWN, param="resume")
        return cls(id, secret)

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}"

    def check_opens(self, origin: SessionOrigin) -> None:
        """Raise ``NotFound`` if the session began with another token."""
        if not compare_digest(hash_key(str(self)), origin.token_sha256):
            raise NotFound(_UNKNOWN, param="resume")


def new_session_id() -> str:
    """Create an id for a session."""
    return f"sess_{token_hex(12)}"


def event_id(session: str, number: int) -> str:
    """Return the id of event ``number`` of ``session``, counted from 1."""
    return f"event_{session.removeprefix('sess_')}_{number}"


def parse_event_number(session: str, id: str, last: int) -> int:
    """Return the number of event ``id`` of ``session``, at most ``last``. Raises ``BadRequest``."""
    head, _, number = id.rpartition("_")
    if head != event_id(session, 0).rpartition("_")[0] or not number.isdecimal() or not 1 <= int(number) <= last:
        raise BadRequest(
            "last_event_id must be the event_id of the last event of this session that you read.", param="last_event_id"
        )
    return int(number)
