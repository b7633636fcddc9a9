"""Answers of whole models in one process, the reference for split ones.

The oracle uses no code of ``omnibus_models`` except the torchvision shim, without which the library does not import on
a CPU. It decodes files here, builds prompts with the joint processor, and calls the library's own ``generate``.
``media`` maps image, video and audio to the bytes of the files, in order of appearance.
"""

import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from omnibus_models import torchvision_cpu
from tests.oracles import mrope

torchvision_cpu.install_operators()

Media = Mapping[str, Sequence[bytes]]
Messages = Sequence[Mapping[str, Any]]
_RATE = 16_000
_FPS = 2


def vl_answer(checkpoint: Path, messages: Messages, media: Media, max_tokens: int) -> tuple[list[int], str]:
    """Greedy ids and text of Qwen2-VL or Qwen2.5-VL."""
    model, processor = _load_vl(checkpoint)
    inputs = vl_inputs(checkpoint, messages, media)
    out = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
    return _decode_answer(processor, inputs, out)


def vl_margin(checkpoint: Path, messages: Messages, media: Media, max_tokens: int) -> float:
    """Smallest margin of ``vl_answer``'s tokens over the next best, in logits."""
    model, _ = _load_vl(checkpoint)
    inputs = vl_inputs(checkpoint, messages, media)
    options = {"output_logits": True, "return_dict_in_generate": True}
    out = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False, **options)
    best = torch.stack(out.logits).topk(2).values
    return float((best[..., 0] - best[..., 1]).min())


def vl_inputs(checkpoint: Path, messages: Messages, media: Media) -> dict[str, torch.Tensor]:
    """The joint processor's tensors for Qwen2-VL or Qwen2.5-VL."""
    _, processor = _load_vl(checkpoint)
    samples = [_sample_video(data) for data in media.get("video", ())]
    videos = [frames for frames, _ in samples]
    more: dict[str, Any] = {}
    if videos:
        more["video_metadata"] = [about for _, about in samples]
        more["do_sample_frames"] = False
    return dict(
        processor(
            text=[_format_chat(processor, messages)],
            images=[_open_picture(data) for data in media.get("image", ())] or None,
            videos=videos or None,
            return_tensors="pt",
            **more,
        )
    )


def omni_answer(
    checkpoint: Path,
    messages: Messages,
    media: Media,
    max_tokens: int,
    voice: str,
    max_codes: int,
    seed: int,
    say: str = "",
) -> tuple[list[int], str, list[int], torch.Tensor]:
    """Greedy ids, text, codes and the float32 waveform of Qwen2.5-Omni.

    ``seed`` fixes the vocoder's noise. With ``say``, the only token allowed is the next one of that text, and then the
    end token. If ``max_tokens`` ends an answer, its speech still covers all of the text. ``generate`` omits the last
    token, so it generates one more, which is dropped here.
    """
    model, processor = _load_omni(checkpoint)
    inputs = omni_inputs(checkpoint, messages, media)
    most = max_tokens + 1
    options: dict[str, Any] = {}
    if say:
        script = [*processor.tokenizer(say, add_special_tokens=False)["input_ids"], processor.tokenizer.eos_token_id]
        begin, max_tokens = inputs["input_ids"].shape[1], len(script)
        most = max_tokens
        options["thinker_prefix_allowed_tokens_fn"] = lambda _row, ids: [script[len(ids) - begin]]
    # Pixels under their plain name reach the talker too, which refuses them.
    arguments = {f"thinker_{key}" if key.startswith("pixel_values") else key: value for key, value in inputs.items()}
    codes: list[torch.Tensor] = []
    hook = model.token2wav.register_forward_pre_hook(lambda _module, args: codes.append(args[0]))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            out, wave = model.generate(
                **arguments,
                **options,
                speaker=voice,
                thinker_max_new_tokens=most,
                thinker_do_sample=False,
                talker_max_new_tokens=max_codes,
                talker_do_sample=False,
                talker_top_k=None,
                talker_top_p=None,
                talker_temperature=None,
                talker_repetition_penalty=1.0,
                talker_eos_token_id=[model.talker.codec_pad_token, model.talker.codec_eos_token],
            )
    finally:
        hook.remove()
    ids, text = _decode_answer(processor, inputs, out, max_tokens)
    return ids, text, codes[0][0].tolist(), wave


def omni_text(checkpoint: Path, messages: Messages, media: Media, max_tokens: int) -> tuple[list[int], str]:
    """Greedy ids and text of Qwen2.5-Omni's thinker."""
    model, processor = _load_omni(checkpoint)
    inputs = omni_inputs(checkpoint, messages, media)
    out = model.thinker.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
    return _decode_answer(processor, inputs, out)


def omni_inputs(checkpoint: Path, messages: Messages, media: Media) -> dict[str, torch.Tensor]:
    """The joint processor's tensors for Qwen2.5-Omni."""
    _, processor = _load_omni(checkpoint)
    videos, rate = _omni_videos(media)
    return dict(
        processor(
            text=_format_chat(processor, messages),
            images=[_open_picture(data) for data in media.get("image", ())] or None,
            videos=videos or None,
            audio=[_decode_samples(data) for data in media.get("audio", ())] or None,
            return_tensors="pt",
            padding=True,
            videos_kwargs={"do_sample_frames": False, "fps": rate},
        )
    )


@functools.cache
def _load_vl(checkpoint: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(checkpoint).eval()
    mrope.correct_positions(model)
    return model, AutoProcessor.from_pretrained(checkpoint)


@functools.cache
def _load_omni(checkpoint: Path) -> tuple[Any, Any]:
    from transformers import AutoProcessor, Qwen2_5OmniForConditionalGeneration

    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(checkpoint).eval()
    _give_the_talker_its_mask(model.talker)
    return model, AutoProcessor.from_pretrained(checkpoint)


def _give_the_talker_its_mask(talker: Any) -> None:
    """Restore the talker's mask, because ``generate`` drops a mask of ones.

    Without a mask the talker leaves out its codec marks and M-RoPE.
    """
    plain = talker.forward

    @functools.wraps(plain)
    def forward_masked(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("attention_mask") is None:
            embeds = kwargs.get("inputs_embeds")
            new = embeds if embeds is not None else kwargs["input_ids"]
            past = kwargs.get("past_key_values")
            length = new.shape[1] + (past.get_seq_length() if past is not None else 0)
            kwargs["attention_mask"] = torch.ones(1, length, dtype=torch.long)
        return plain(*args, **kwargs)

    talker.forward = forward_masked


def _format_chat(processor: Any, messages: Messages) -> str:
    text: str = processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return text


def _decode_answer(
    processor: Any, inputs: Mapping[str, torch.Tensor], out: torch.Tensor, most: int | None = None
) -> tuple[list[int], str]:
    ids = out[0, inputs["input_ids"].shape[1] :].tolist()[:most]
    return ids, processor.tokenizer.decode(ids, skip_special_tokens=True)


def _open_picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _all_frames(data: bytes) -> tuple[np.ndarray, float]:
    """Every frame, uint8 [n, height, width, 3], and frames per second."""
    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        return np.stack(frames), float(container.streams.video[0].average_rate)


def _sample_video(data: bytes, multiple: int = 2) -> tuple[np.ndarray, Any]:
    """Sample two frames per second, and return the library's metadata.

    Source: ``smart_nframes`` and ``_read_video_torchcodec`` of qwen-vl-utils 0.0.14, ``Qwen3VLVideoProcessor`` (for
    which any number is a ``multiple``) and vLLM 0.32.
    """
    from transformers.video_utils import VideoMetadata

    frames, rate = _all_frames(data)
    total = len(frames)
    count = max(1, int(min(max(total / rate * _FPS, 4), total)) // multiple * multiple)
    indices = np.linspace(0, total - 1, count).round().astype(int)
    return frames[indices], VideoMetadata(total, fps=rate, frames_indices=indices.tolist())


def _omni_videos(media: Media) -> tuple[list[np.ndarray], float]:
    """Frames of all videos, and their common rate in Omni families.

    Their joint processors take one rate for all.
    """
    samples = [_sample_video(data) for data in media.get("video", ())]
    rates = {about.sampled_fps for _, about in samples} or {float(_FPS)}
    [rate] = rates
    return [frames for frames, _ in samples], rate


def _decode_samples(data: bytes) -> np.ndarray:
    """Mono float32 at 16 kHz: the mean of the channels."""
    resampler = av.AudioResampler(format="fltp", rate=_RATE)
    with av.open(io.BytesIO(data)) as container:
        pieces = [piece for frame in container.decode(audio=0) for piece in resampler.resample(frame)]
    pieces += resampler.resample(None)
    return np.concatenate([piece.to_ndarray().mean(axis=0) for piece in pieces])
