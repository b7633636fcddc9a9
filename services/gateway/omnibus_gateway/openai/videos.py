"""Requests and responses of ``/v1/videos``, as in the ``openai`` client, plus extras.

Source: the types of the ``openai`` package, 3.52. A field that the gateway would silently ignore is an error.
"""

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai import multipart
from omnibus_gateway.openai.chat_request import Guidance, Steps
from omnibus_gateway.openai.images import ImageReference
from omnibus_gateway.openai.messages import MediaRef
from omnibus_gateway.openai.multipart import Form, FormPart
from omnibus_gateway.openai.parse import decode_body, invalid_request

PATH, VIDEO, CONTENT = "/v1/videos", "/v1/videos/{video_id}", "/v1/videos/{video_id}/content"

#: The field of the first image of a video.
REFERENCE = "input_reference"

#: Routes of OpenAI that change a video, which no family here supports.
REMIX, EDITS, EXTENSIONS = f"{VIDEO}/remix", f"{PATH}/edits", f"{PATH}/extensions"

Variant = Literal["video", "thumbnail"]
_Extent = Annotated[str, Meta(max_length=16, pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")]
_Written = Annotated[str, Meta(max_length=16, pattern=r"^[0-9]{1,5}([.][0-9]{1,6})?$")]
_Seconds = Annotated[float, Meta(ge=0, le=3600)]


class VideoRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A video to generate, as JSON or as a form. None means that the client did not set the field."""

    prompt: Annotated[str, Meta(min_length=1, max_length=32_000)]
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    #: A string, as OpenAI's clients send it, or a number.
    seconds: _Written | _Seconds | None = None
    #: Width and height, as 1280x720.
    size: _Extent | None = None

    # Extras that other open servers also accept. Fields that follow each other may be synonyms.
    negative_prompt: Annotated[str, Meta(max_length=32_000)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**62)] | None = None
    steps: Steps | None = None
    num_inference_steps: Steps | None = None
    guidance: Guidance | None = None
    guidance_scale: Guidance | None = None
    fps: Annotated[float, Meta(ge=1, le=120)] | None = None
    #: Whether the video has audio. By default it does if the model generates audio.
    sound: bool | None = None

    #: The first image of the video; in a form it may also be a file.
    input_reference: ImageReference | None = None

    # Accepted and ignored.
    user: str | None = None

    def task_fields(self) -> dict[str, Any]:
        """Return the fields that the client set, by the names of ``omnibus.task.library.VideoInput``."""
        width, height = map(int, self.size.split("x")) if self.size else (None, None)
        fields = {
            "prompt": self.prompt,
            "negative_prompt": self.negative_prompt,
            "width": width,
            "height": height,
            "seconds": None if self.seconds is None else float(self.seconds),
            "fps": self.fps,
            "steps": self.steps or self.num_inference_steps,
            "guidance": self.guidance if self.guidance is not None else self.guidance_scale,
            "seed": self.seed,
            "sound": self.sound,
        }
        return {name: value for name, value in fields.items() if value is not None}


class VideoOrder(NamedTuple):
    """A request with its ``input_reference``: a file of the form, or a reference to fetch."""

    request: VideoRequest
    file: FormPart | None = None

    @property
    def has_image(self) -> bool:
        return self.file is not None or self.request.input_reference is not None

    @property
    def image_ref(self) -> MediaRef | None:
        """The image to fetch, if it is a reference."""
        reference = self.request.input_reference
        if reference is None:
            return None
        return MediaRef("image", url=reference.image_url or "", file_id=reference.file_id or "", param=REFERENCE)


class VideoFault(Struct, frozen=True, kw_only=True):
    """Reason why a video failed. ``code`` and ``type`` are those of the error of a request."""

    code: str
    message: str
    param: str | None = None
    type: str | None = None


class Video(Struct, frozen=True, kw_only=True):
    """A video, complete or not. Times are in Unix seconds; ``progress`` is in percent."""

    id: str
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    created_at: int
    prompt: str
    #: As requested: models generate whole groups of frames.
    seconds: str
    size: str
    #: The seed that reproduces the video.
    seed: int
    fps: float
    completed_at: int | None = None
    expires_at: int | None = None
    error: VideoFault | None = None
    remixed_from_video_id: str | None = None
    object: Literal["video"] = "video"


class VideoList(Struct, frozen=True, kw_only=True):
    data: list[Video]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class VideoDeleted(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True


class ListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of ``GET /v1/videos``: at most ``limit`` videos, starting after the id ``after``."""

    after: Annotated[str, Meta(max_length=256)] = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


class ContentQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of ``GET /v1/videos/{video_id}/content``."""

    variant: Literal["video", "thumbnail", "spritesheet"] = "video"


_DECODER = msgspec.json.Decoder(VideoRequest)


def parse_video_request(body: bytes, kind: str) -> VideoOrder:
    """Decode and check a request. ``kind`` is its content type, read as JSON unless it is that of a form.

    Raises ``BadRequest`` with ``param``.
    """
    is_form = kind.lower().startswith("multipart/")
    order = _parse_form(body, kind) if is_form else VideoOrder(decode_body(_DECODER, body))
    request = order.request
    if (reference := request.input_reference) is not None and (reference.file_id is None) == (
        reference.image_url is None
    ):
        raise BadRequest(f"'{REFERENCE}' must have either an 'image_url' or a 'file_id'.", param=REFERENCE)
    for first, second in (("steps", "num_inference_steps"), ("guidance", "guidance_scale")):
        if getattr(request, first) is not None and getattr(request, second) is not None:
            raise BadRequest(f"'{first}' and '{second}' are synonyms: send only one of them.", param=second)
    return order


def parse_variant(query: dict[str, str]) -> Variant:
    """Return the variant to fetch. Raises ``BadRequest`` with ``param``."""
    video_variant = _convert_fields(query, ContentQuery).variant
    if video_variant == "spritesheet":
        raise _unsupported_value("variant", "use 'video' or 'thumbnail'")
    return video_variant


def parse_list_query(query: dict[str, str]) -> ListQuery:
    """Raises ``BadRequest`` with ``param``."""
    return _convert_fields(query, ListQuery)


def _parse_form(body: bytes, kind: str) -> VideoOrder:
    form = multipart.parse_form(body, kind)
    form.check_file_names(REFERENCE)
    fields: dict[str, Any] = dict(form.fields())
    reference_fields = {name: fields.pop(f"{REFERENCE}[{name}]", None) for name in ImageReference.__struct_fields__}
    if present_fields := {name: value for name, value in reference_fields.items() if value is not None}:
        fields[REFERENCE] = present_fields
    file = _reference_file(form)
    if file is not None and REFERENCE in fields:
        raise BadRequest(f"'{REFERENCE}' must be a file or a reference, not both.", param=REFERENCE)
    return VideoOrder(_convert_fields(fields, VideoRequest), file)


def _reference_file(form: Form) -> FormPart | None:
    return form.file(REFERENCE) if form.files(REFERENCE) else None


def _convert_fields(fields: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), kind) from None


def _unsupported_value(param: str, instead: str) -> BadRequest:
    return BadRequest(f"The value of '{param}' is not supported: {instead}.", param=param)
