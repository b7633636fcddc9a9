"""The table of accepted formats in ``docs/routes.md``.

It comes from the lists that the gateway and the decoders use.
"""

from collections.abc import Iterable
from pathlib import Path

from omnibus_gateway.media.inspect import AUDIO_OR_VIDEO, FORMATS
from omnibus_models import _av as _codecs

PAGE = Path(__file__).parents[2] / "docs" / "routes.md"
BEGIN, END = "<!-- formats: made by python -m tests.pages -->", "<!-- /formats -->"

#: Rows about the processing of each kind of media.
_IMAGE_ROWS = (
    ("frames", "the first of an animation or of several pages"),
    ("rotation", "as in EXIF, or in the boxes of AVIF and HEIC; damaged metadata are ignored"),
    ("background", "white under transparent pixels"),
    ("bit depth", "8 bits of each channel; 16 bits are divided by 257"),
)
_VIDEO_ROWS = (
    ("rotation", "as in the display matrix"),
    ("frame rate and times", "frames have the times of the file, also at a variable rate"),
    (
        "length",
        "from the header; if it has none, from the last fragments of MP4, clusters of Matroska, or pages of Ogg",
    ),
)
_AUDIO_ROWS = (
    ("track", "the first one, also of a video"),
    ("samples", "integers of 8 to 64 bits, floats of 32 and 64 bits, A-law, mu-law"),
    ("channels", "1 to 64, their mean"),
    ("rate", "1,000 to 768,000 hertz, resampled to the rate of the model"),
    (
        "length",
        "from the samples, frames, pages or clusters in the file; of MP4 and AVI from the header, if it has one",
    ),
    ("tags", "ID3 tags, and zeros after them, are skipped; MP3, MP2 and AAC may begin inside a frame"),
)
_ROWS = {"image": _IMAGE_ROWS, "audio": _AUDIO_ROWS, "video": _VIDEO_ROWS}


def make_page() -> str:
    """``docs/routes.md`` with its current table."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{format_table()}\n\n{END}{tail}"


def format_table() -> str:
    """Table of formats, codecs, and their use."""
    rows = ["| | | |", "|---|---|---|"]
    for modality in ("image", "audio", "video"):
        rows.append(f"| **{modality}** | formats | {_list_formats(modality)} |")
        if codecs := _codec_names(modality):
            rows.append(f"| | codecs | {codecs} |")
        rows += [f"| | {name} | {meaning} |" for name, meaning in _ROWS[modality]]
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(name for each in FORMATS.values() for name in each.short))
    return "\n".join([*rows, f"| **`input_audio.format`** | | {names} |"])


def _list_formats(modality: str) -> str:
    own = [mime for mime in FORMATS if mime.startswith(f"{modality}/")]
    text = ", ".join(f"{FORMATS[mime].name} (`{mime}`)" for mime in own)
    return f"{text}; {_join_names(AUDIO_OR_VIDEO)} as for video" if modality == "audio" else text


def _join_names(mimes: Iterable[str]) -> str:
    return ", ".join(FORMATS[mime].name for mime in sorted(mimes))


def _codec_names(modality: str) -> str:
    readable = _codecs.READABLE.get(modality, frozenset())
    return ", ".join(f"`{name}`" for name in sorted(readable - _codecs.PCM)) + (
        ", PCM of every kind" if modality == "audio" else ""
    )
