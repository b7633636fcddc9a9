"""Codecs that files from clients may use. FFmpeg has hundreds of decoders; only these are opened.

Names are FFmpeg's names of formats, not of decoders: libdav1d reads ``av1`` if it is available.
"""

from typing import Any

from omnibus import errors

_VIDEO = frozenset({"av1", "h263", "h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "theora", "vp8", "vp9"})
_AUDIO = frozenset(
    {"aac", "ac3", "adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms", "alac", "amr_nb", "amr_wb"}
    | {"eac3", "flac", "mp2", "mp3", "opus", "vorbis"}
)
#: Uncompressed samples, in every byte order, and the two telephone codings.
PCM = frozenset(
    {"pcm_alaw", "pcm_mulaw", "pcm_s64be", "pcm_s64le", "pcm_s8", "pcm_u8"}
    | {f"pcm_{kind}{bits}{order}" for kind in "su" for bits in (16, 24, 32) for order in ("le", "be")}
    | {f"pcm_f{bits}{order}" for bits in (32, 64) for order in ("le", "be")}
)
READABLE = {"video": _VIDEO, "audio": _AUDIO | PCM}

# Some formats have several decoders with different names.
_OTHER_NAMES = {"libdav1d", "mp3float", "mp2float", "amrnb", "amrwb", "libopus", "libvpx", "libvpx-vp9"}
_ALSO = _OTHER_NAMES | {"libopencore_amrnb", "libopencore_amrwb", "libvorbis"}

#: Names of decoders, as FFmpeg's ``codec_whitelist`` takes them.
DECODERS = ",".join(sorted(_VIDEO | _AUDIO | PCM | _ALSO))


def require_codec(stream: Any, kind: str) -> None:
    """Raise ``BadMedia`` unless the codec of ``stream`` is supported for ``kind``. Opens nothing."""
    context = stream.codec_context
    if context is None or context.codec.canonical_name not in READABLE[kind]:
        codec_names = ", ".join(sorted(READABLE[kind] - PCM))
        raise errors.BadMedia(f"the {kind} is in a codec that is not read here; send one of: {codec_names}")
