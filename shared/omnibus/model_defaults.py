"""Values that requests to a model may omit, and what its requests may have. The planner does not read them."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omnibus.errors import BadRequest


class ImageDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Defaults of a model that generates images: pixels, steps and guidance; and its limits.

    Defaults apply to requests without these values. 0 and None mean the family's defaults. Sides of images are
    multiples of ``side_multiple``; 0 leaves that to the executor. ``negative_prompt``, ``image``, ``mask`` and
    ``strength`` are false for a model that takes none.
    """

    width: int = 0
    height: int = 0
    steps: int = 0
    guidance: float | None = None
    side_multiple: int = 0
    negative_prompt: bool = True
    image: bool = True
    mask: bool = True
    strength: bool = True

    def check_request(self, model: str, wish: Mapping[str, Any], images: int) -> None:
        """Raise ``BadRequest`` if ``model`` cannot make ``wish``, a request with so many ``images``."""
        sides = (wish.get("width") or 0, wish.get("height") or 0)
        if self.side_multiple and any(side % self.side_multiple for side in sides):
            raise BadRequest(
                f"{model} makes images whose sides are multiples of {self.side_multiple}, not {sides[0]}x{sides[1]}",
                param="size",
            )
        if wish.get("negative_prompt") and not self.negative_prompt:
            raise BadRequest(f"{model} takes no negative prompt: omit it", param="negative_prompt")
        if images and not self.image:
            raise BadRequest(f"{model} generates images from text alone: omit the image", param="image")
        for name, is_taken in (("mask", self.mask), ("strength", self.strength)):
            if wish.get(name) is not None and not is_taken:
                raise BadRequest(f"{model} takes no {name} of an edit: omit it", param=name)


class SamplingDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Defaults of a model for sampling text.

    They apply to requests without these values. None leaves a value to the checkpoint's ``generation_config.json``. If
    ``checkpoint`` is false, None means plain sampling: all tokens by their probabilities.
    """

    checkpoint: bool = True
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None

    def values(self) -> dict[str, float]:
        """Return the declared values."""
        given = msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value is not None and name != "checkpoint"}
