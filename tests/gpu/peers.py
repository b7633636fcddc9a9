"""What transformers and diffusers do alone with a checkpoint, on the same device and in the same precision."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from omnibus_models import torchvision_cpu

torchvision_cpu.install_operators()


class Device(NamedTuple):
    name: str
    dtype: torch.dtype

    def wait(self) -> None:
        if self.name.startswith("cuda"):
            torch.cuda.synchronize()


def measure_seconds(device: Device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of ``work`` and what it returns; it has run once before."""
    work()
    device.wait()
    begin = time.perf_counter()
    outcome = work()
    device.wait()
    return time.perf_counter() - begin, outcome


class TextPeer:
    """``generate`` of a language model, with or without images."""

    def __init__(self, checkpoint: Path, cls: str, device: Device) -> None:
        import transformers

        self._device = device
        kind = transformers.AutoTokenizer if cls == "AutoModelForCausalLM" else transformers.AutoProcessor
        self._processor = kind.from_pretrained(checkpoint)
        tokenizer = getattr(self._processor, "tokenizer", self._processor)
        tokenizer.padding_side = "left"
        self._model = getattr(transformers, cls).from_pretrained(checkpoint, dtype=device.dtype).to(device.name).eval()

    @torch.inference_mode()
    def generate(self, texts: Sequence[str], tokens: int, images: Sequence[Any] = ()) -> tuple[float, list[list[int]]]:
        """Return the seconds for ``tokens`` greedy tokens of each text, and their ids."""
        media = {"images": [[image] for image in images]} if images else {}
        settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}

        def answer() -> Any:
            inputs = self._processor(text=list(texts), return_tensors="pt", padding=True, **media)
            inputs = inputs.to(self._device.name, self._device.dtype) if media else inputs.to(self._device.name)
            return self._model.generate(**inputs, **settings)[:, inputs["input_ids"].shape[1] :]

        seconds, ids = measure_seconds(self._device, answer)
        return seconds, ids.tolist()

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode(ids, skip_special_tokens=True))

    def ask(self, text: str) -> str:
        """Return the prompt of a chat about one image."""
        content = [{"type": "image"}, {"type": "text", "text": text}]
        messages = [{"role": "user", "content": content}]
        return str(self._processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@torch.inference_mode()
def speak(checkpoint: Path, device: Device, text: str) -> float:
    """Return the seconds of computing for a second of speech, by ``generate`` of Qwen2.5-Omni."""
    from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

    processor = Qwen2_5OmniProcessor.from_pretrained(checkpoint)
    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(checkpoint, dtype=device.dtype).to(device.name).eval()
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = processor(text=[prompt], return_tensors="pt").to(device.name)
    lengths = {"thinker_max_new_tokens": 32, "talker_max_new_tokens": model.generation_config.talker_max_new_tokens}
    seconds, (_, audio) = measure_seconds(
        device, lambda: model.generate(**inputs, **lengths, speaker="Chelsie", return_audio=True)
    )
    return seconds / (audio.numel() / 24_000)


@torch.inference_mode()
def paint(checkpoint: Path, device: Device, prompt: str, size: int, steps: int, count: int) -> tuple[float, list[Any]]:
    """Return the seconds for ``count`` images in one batch, and the images."""
    import diffusers

    pipeline = diffusers.DiffusionPipeline.from_pretrained(checkpoint, dtype=device.dtype).to(device.name)
    pipeline.set_progress_bar_config(disable=True)

    def draw() -> list[Any]:
        seeds = [torch.Generator("cpu").manual_seed(seed) for seed in range(count)]
        shape = {"height": size, "width": size, "num_inference_steps": steps, "num_images_per_prompt": count}
        return list(pipeline(prompt, generator=seeds, **shape).images)

    return measure_seconds(device, draw)


@torch.inference_mode()
def transcribe(checkpoint: Path, device: Device, clips: Sequence[Any]) -> float:
    """Return the seconds for ``clips`` [S] in one batch."""
    from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

    processor = AutoProcessor.from_pretrained(checkpoint)
    model = AutoModelForSpeechSeq2Seq.from_pretrained(checkpoint, dtype=device.dtype).to(device.name).eval()

    def recognize() -> Any:
        inputs = processor(list(clips), sampling_rate=16_000, return_tensors="pt").to(device.name, device.dtype)
        return model.generate(**inputs, language="en", task="transcribe")

    return measure_seconds(device, recognize)[0]


@torch.inference_mode()
def embed(checkpoint: Path, device: Device, texts: Sequence[str]) -> tuple[float, Any]:
    """Return the seconds for ``texts`` in one batch, and their embeddings [N, H], mean-pooled and of length 1."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModel.from_pretrained(checkpoint, dtype=device.dtype).to(device.name).eval()

    def pool() -> Any:
        inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=64, return_tensors="pt").to(
            device.name
        )
        rows = model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"][..., None]
        return torch.nn.functional.normalize((rows * mask).sum(1) / mask.sum(1), dim=-1).cpu()

    return measure_seconds(device, pool)
