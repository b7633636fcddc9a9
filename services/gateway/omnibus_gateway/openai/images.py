"""Requests and responses of ``/v1/images``, as in the ``openai`` client, plus extras.

Source: the types of the ``openai`` package, 3.52. A field that the gateway would silently ignore is an error.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.encoding.image import PictureFormat
from omnibus.errors import BadRequest
from omnibus_gateway.openai.chat_request import Guidance, Size, Steps
from omnibus_gateway.openai.parse import decode_body, invalid_request

PATH, EDITS, VARIATIONS = "/v1/images/generations", "/v1/images/edits", "/v1/images/variations"

#: Qualities that mean the model's default. Others, such as ``hd``, would change nothing either, so they are rejected.
_USUAL_QUALITY = ("auto", "standard", "medium")
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


class ImageOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that generations and edits have in common. None means that the client did not set the field."""

    prompt: Annotated[str, Meta(min_length=1, max_length=32_000)]
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    #: Width and height, as 1024x768; ``auto``: the model's usual size, or that of the image to edit.
    size: Size | None = None
    response_format: Literal["url", "b64_json"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    #: Quality of jpeg and webp in percent.
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None

    # Extras that other open servers also accept. Fields that follow each other may be synonyms.
    negative_prompt: Annotated[str, Meta(max_length=32_000)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**62)] | None = None
    steps: Steps | None = None
    num_inference_steps: Steps | None = None
    guidance: Guidance | None = None
    guidance_scale: Guidance | None = None
    true_cfg_scale: Guidance | None = None

    # Accepted only with values that change nothing.
    background: Literal["transparent", "opaque", "auto"] | None = None
    quality: str | None = None
    style: str | None = None
    complexity: str | None = None
    frame_count: int | None = None
    frame_duration_ms: int | None = None
    svg: Any = None

    # Accepted and ignored: the gateway neither filters nor bills images.
    moderation: Literal["low", "auto"] | None = None
    safety_identifier: str | None = None
    user: str | None = None

    @property
    def format(self) -> PictureFormat:
        return self.output_format or "png"

    @property
    def compression(self) -> int:
        return 100 if self.output_compression is None else self.output_compression

    @property
    def url(self) -> bool:
        """True if the client requests URLs instead of bytes."""
        return self.response_format == "url"

    @property
    def extent(self) -> tuple[int, int] | None:
        """Width and height; None if the model or an input image sets them."""
        match = _SIZE.fullmatch(self.size or "auto")
        return (int(match[1]), int(match[2])) if match else None

    def task_fields(self) -> dict[str, Any]:
        """Return the fields that the client set, by the names of ``omnibus.task.library.DrawInput``."""
        width, height = self.extent or (None, None)
        fields = {
            "prompt": self.prompt,
            "negative_prompt": self.negative_prompt,
            "width": width,
            "height": height,
            "n": self.n,
            "steps": self.steps or self.num_inference_steps,
            "guidance": next((each for each in self._guidance_values if each is not None), None),
            "seed": self.seed,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def _guidance_values(self) -> tuple[float | None, ...]:
        return self.guidance, self.guidance_scale, self.true_cfg_scale


class ImageRequest(ImageOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/images/generations``."""


class EditForm(ImageOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of ``POST /v1/images/edits`` except the files."""

    input_fidelity: str | None = None
    #: An extra: how much to change of the image.
    strength: Annotated[float, Meta(ge=0, le=1)] | None = None

    def task_fields(self) -> dict[str, Any]:
        """Return the fields that the client set, by the names of ``omnibus.task.library.RedrawInput``."""
        fields = super().task_fields()
        return fields if self.strength is None else {**fields, "strength": self.strength}


class ImageReference(Struct, frozen=True, forbid_unknown_fields=True):
    """A reference image: the id of an uploaded file, or an https or data URL."""

    file_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    image_url: Annotated[str, Meta(min_length=1)] | None = None


class EditRequest(EditForm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/images/edits`` as JSON. It references images instead of uploading them."""

    images: Annotated[list[ImageReference], Meta(min_length=1, max_length=16)]
    mask: ImageReference | None = None

    @property
    def references(self) -> dict[str, ImageReference]:
        """The images, and the mask after them, by their names in the request."""
        images = {f"images[{index}]": each for index, each in enumerate(self.images)}
        return images if self.mask is None else {**images, "mask": self.mask}


# Responses


class InputDetails(Struct, frozen=True):
    image_tokens: int = 0
    text_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    image_tokens: int = 0
    text_tokens: int = 0


class ImageUsage(Struct, frozen=True):
    """Token counts: of the prompt by the text encoder, and of images, one per 16 x 16 pixels."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class Image(Struct, frozen=True, omit_defaults=True):
    """An image. ``b64_json`` is its file, base64 in JSON; ``url`` is a link to it that expires."""

    b64_json: bytes | UnsetType = UNSET
    url: str | UnsetType = UNSET


class ImagesResponse(Struct, frozen=True):
    created: int
    data: list[Image]
    output_format: PictureFormat
    size: str
    usage: ImageUsage
    background: Literal["opaque"] = "opaque"


class PartialImage(Struct, frozen=True):
    """An unfinished image, as a file of the full size."""

    type: Literal["image_generation.partial_image", "image_edit.partial_image"]
    b64_json: bytes
    partial_image_index: int
    created_at: int
    size: str
    output_format: PictureFormat
    quality: Literal["auto"] = "auto"
    background: Literal["opaque"] = "opaque"


class CompletedImage(Struct, frozen=True):
    type: Literal["image_generation.completed", "image_edit.completed"]
    b64_json: bytes
    created_at: int
    size: str
    output_format: PictureFormat
    usage: ImageUsage
    quality: Literal["auto"] = "auto"
    background: Literal["opaque"] = "opaque"


_EDIT = msgspec.json.Decoder(EditRequest)
_GENERATION = msgspec.json.Decoder(ImageRequest)
_encode = msgspec.json.Encoder().encode


def image_usage(text: int, pixels: int, images: int = 0) -> ImageUsage:
    """Return the usage of a request.

    The prompt has ``text`` and ``images`` tokens. The generated images have ``pixels`` in total.
    """
    output_tokens = pixels // 256
    return ImageUsage(
        text + images,
        output_tokens,
        text + images + output_tokens,
        InputDetails(images, text),
        OutputDetails(image_tokens=output_tokens),
    )


def encode_response(created: int, data: list[Image], format: PictureFormat, size: str, usage: ImageUsage) -> bytes:
    """Encode the body of a complete response."""
    return _encode(ImagesResponse(created, data, format, size, usage))


def encode_event(event: PartialImage | CompletedImage) -> bytes:
    """Encode one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), _encode(event))


# Requests


def parse_generation(body: bytes) -> ImageRequest:
    """Decode and check the body of a generation. Raises ``BadRequest`` with ``param``."""
    request = decode_body(_GENERATION, body)
    check_options(request)
    return request


def parse_edit(fields: Mapping[str, Any]) -> EditForm:
    """Check the fields of an edit except its files. Raises ``BadRequest`` with ``param``."""
    try:
        form = msgspec.convert(fields, EditForm, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), EditForm) from None
    _check_edit(form)
    return form


def parse_edit_json(body: bytes) -> EditRequest:
    """Decode and check an edit that references its images. Raises ``BadRequest`` with ``param``."""
    request = decode_body(_EDIT, body)
    _check_edit(request)
    for name, each in request.references.items():
        if (each.file_id is None) == (each.image_url is None):
            raise BadRequest("An image must have either a file_id or an image_url.", param=name)
    return request


def _check_edit(form: EditForm) -> None:
    check_options(form)
    if form.input_fidelity is not None:
        raise _unsupported_value("input_fidelity", "the model decides how closely to follow an image; omit it")


def check_options(request: ImageOptions) -> None:
    """Raises ``BadRequest`` with the name of the first unsupported field."""
    if request.background == "transparent":
        raise _unsupported_value("background", "images are always opaque; send opaque or auto, or omit it")
    if request.quality not in (None, *_USUAL_QUALITY):
        raise _unsupported_value(
            "quality",
            f"set `steps` instead, and send {', '.join(_USUAL_QUALITY)} or nothing for the model's default",
        )
    for name in ("style", "complexity", "frame_count", "frame_duration_ms", "svg"):
        if getattr(request, name) is not None:
            raise _unsupported_value(name, "omit it")
    if request.output_compression is not None and request.format == "png":
        raise BadRequest(
            "output_compression is not supported for png: request jpeg or webp.", param="output_compression"
        )
    _check_once(request, "steps", "num_inference_steps")
    _check_once(request, "guidance", "guidance_scale", "true_cfg_scale")
    _check_stream(request)


def _check_once(request: ImageOptions, *names: str) -> None:
    set_names = [name for name in names if getattr(request, name) is not None]
    if len(set_names) > 1:
        raise BadRequest(
            f"'{set_names[0]}' and '{set_names[1]}' are synonyms: send only one of them.", param=set_names[1]
        )


def _check_stream(request: ImageOptions) -> None:
    if not request.stream:
        if request.partial_images:
            raise BadRequest("partial_images is only allowed when stream is true.", param="partial_images")
        return
    if (request.n or 1) > 1:
        raise BadRequest("A stream has only one image: omit n or stream.", param="n")
    if request.url:
        raise BadRequest("A stream cannot return URLs: omit response_format.", param="response_format")


def _unsupported_value(param: str, instead: str) -> BadRequest:
    return BadRequest(f"The value of '{param}' is not supported: {instead}.", param=param)
