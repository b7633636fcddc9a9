"""Requests and responses of ``/v1/conversations``. Source: the types of the ``openai`` package, 3.52.

Queries of the routes of a response and of its items.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.errors import BadRequest
from omnibus_gateway.openai.parse import check_values, convert_json, invalid_request
from omnibus_gateway.openai.responses.items import InputItem
from omnibus_gateway.openai.responses.request import Metadata, name_message

PATH = "/v1/conversations"
CONVERSATION = f"{PATH}/{{conversation_id}}"
ITEMS = f"{CONVERSATION}/items"
ITEM = f"{ITEMS}/{{item_id}}"

#: Limit of the items that one request may add.
MAX_NEW_ITEMS = 20


class ConversationRequest(Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[InputItem], Meta(max_length=MAX_NEW_ITEMS)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    metadata: Metadata | None


class NewItems(Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_NEW_ITEMS)]


class ConversationObject(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class ConversationDeleted(Struct, frozen=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


def parse_conversation_body(body: bytes, kind: Any) -> Any:
    """Decode ``body`` as ``kind``, or {} if it is empty. Raises ``BadRequest`` with ``param``, and ``TooLarge``."""
    check_values(body)
    try:
        document = msgspec.json.decode(body or b"{}")
        if isinstance(document, dict) and isinstance(document.get("items"), list):
            document["items"] = [name_message(item) for item in document["items"]]
        return convert_json(document, kind)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), kind, document) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None


Query = TypeVar("Query")
Flag = Literal["true", "false"]


class ListItemsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of items after the item ``after``. The newest item is first, unless ``order`` is ``asc``."""

    after: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


class RetrieveQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a retrieval. ``stream`` requests the events after number ``starting_after``."""

    stream: Flag | UnsetType = UNSET
    starting_after: Annotated[int, Meta(ge=0, le=2**53)] | UnsetType = UNSET
    include_obfuscation: Flag | UnsetType = UNSET

    @property
    def wants_stream(self) -> bool:
        return self.stream == "true"

    @property
    def after(self) -> int:
        """Number of the client's last event, or -1 if it has none."""
        return self.starting_after if isinstance(self.starting_after, int) else -1


def parse_query(fields: dict[str, str], kind: type[Query]) -> Query:
    """Convert ``fields`` to ``kind``. Raises ``BadRequest`` with ``param``."""
    values: dict[str, Any] = {
        name: value.lower() if value in ("True", "False") else value for name, value in fields.items()
    }
    for name in [name for name in values if name in ("include", "include[]")]:
        del values[name]  # every response includes all that can be included
    try:
        query = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), kind) from None
    if isinstance(query, RetrieveQuery) and query.starting_after is not UNSET and not query.wants_stream:
        raise BadRequest("starting_after is only allowed when stream is true.", param="starting_after")
    return query
