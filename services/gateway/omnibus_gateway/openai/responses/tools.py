"""Tools of responses: functions, and the generation of images."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from omnibus_gateway.openai.chat_request import Size
from omnibus_gateway.openai.images import ImageRequest
from omnibus_gateway.openai.tools import MAX_TOOLS, Description, Name

#: Name, description and parameters of the function that represents the image tool to a model.
IMAGE_TOOL = "image_generation"
IMAGE_TOOL_DESCRIPTION = "Draw an image and show it to the user."
IMAGE_TOOL_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "What the image shows, in full."}},
    "required": ["prompt"],
    "additionalProperties": False,
}


class FlatFunctionTool(Struct, frozen=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A function that a model may call. ``parameters`` is a JSON schema; with ``strict``, calls satisfy it."""

    name: Name
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ImageGenerationTool(Struct, frozen=True, tag_field="type", tag="image_generation", forbid_unknown_fields=True):
    """A tool that generates images. ``model`` is optional if there is only one image model."""

    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    size: Size | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None

    # Accepted only with values that change nothing.
    action: Literal["generate", "auto"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    quality: str | None = None

    # Accepted and ignored: the gateway does not filter images.
    moderation: Literal["low", "auto"] | None = None

    def to_image_request(self, model: str, prompt: str) -> ImageRequest:
        """Convert the tool's options to a request for an image of ``prompt``."""
        return ImageRequest(
            model=model,
            prompt=prompt,
            size=self.size,
            output_format=self.output_format,
            output_compression=self.output_compression,
            background=self.background,
            quality=self.quality,
        )


class NamedImageChoice(Struct, frozen=True, tag_field="type", tag="image_generation", forbid_unknown_fields=True):
    """A choice that requires an image."""


class FlatNamedChoice(Struct, frozen=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    """The choice of one function that the model must call."""

    name: Name


class FlatAllowedChoice(Struct, frozen=True, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    """A choice that allows only some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatNamedChoice], Meta(min_length=1, max_length=MAX_TOOLS)]
