"""Names by which a client goes on with a session elsewhere: its token, and the last event that it has seen."""

from secrets import compare_digest, token_hex, token_urlsafe
from typing import NamedTuple

from omnibus.api_key import hash_key
from omnibus.errors import BadRequest, NotFound
from omnibus.recording.sessions import SessionOrigin

_UNKNOWN = "no session of this token is kept, or its time is over: open another one"


class ResumeToken(NamedTuple):
    """Names session ``id``, and shows by a secret that its client may have it."""

    id: str
    secret: str

    @classmethod
    def create(cls) -> "ResumeToken":
        return cls(new_session_id(), token_urlsafe(18))

    @classmethod
    def parse(cls, text: str) -> "ResumeToken":
        """Raises ``NotFound``."""
        id, _, secret = text.partition(".")
        if not id.startswith("sess_") or not secret:
            raise NotFound(_UNKNOWN, param="resume")
        return cls(id, secret)

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}"

    def check_opens(self, origin: SessionOrigin) -> None:
        """Raises ``NotFound`` if it is not the token with which the session began."""
        if not compare_digest(hash_key(str(self)), origin.token_sha256):
            raise NotFound(_UNKNOWN, param="resume")


def new_session_id() -> str:
    """An id of a session."""
    return f"sess_{token_hex(12)}"


def event_id(session: str, number: int) -> str:
    """The id of the event with this number of ``session``, from 1."""
    return f"event_{session.removeprefix('sess_')}_{number}"


def parse_event_number(session: str, id: str, last: int) -> int:
    """The number of event ``id`` of ``session``, whose last one has the number ``last``. Raises ``BadRequest``."""
    head, _, number = id.rpartition("_")
    if head != event_id(session, 0).rpartition("_")[0] or not number.isdecimal() or not 1 <= int(number) <= last:
        raise BadRequest(
            "last_event_id is the event_id of the last event of this session that was read.", param="last_event_id"
        )
    return int(number)
