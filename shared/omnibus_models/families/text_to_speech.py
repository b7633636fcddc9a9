"""Text-to-speech models: any class of transformers whose last step is one call of a vocoder.

The model's own ``generate`` or ``forward`` computes everything up to that call. A ``CallCatcher`` in the place of the
vocoder takes the arguments, which then travel to the vocoder. So the samples are those of the class itself. A class is
served only after a tiny copy of it has given equal samples, see ``omnibus_llm.engine.media_admission``.
"""

import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoProcessor, AutoTokenizer, PreTrainedModel

from omnibus import checkpoints, errors
from omnibus.encoding.audio import OPENAI_VOICES
from omnibus_models import loading
from omnibus_models.contract import LoadedComponent, SpeakingOptions, VocoderCall, no_component
from omnibus_models.families._speech_classes import SpeechClass, find_speech_class

#: Directories in a checkpoint: another model as vocoder, and files of voices.
VOCODER_FOLDER, VOICES_FOLDER = "vocoder", "speaker_embeddings"
#: The only voice of a model without a choice.
DEFAULT_VOICE = "default"

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")


class _VocoderReached(Exception):
    """Ends a model's own function where it calls its vocoder."""

    def __init__(self, call: VocoderCall) -> None:
        super().__init__()
        self.call = call


class CallCatcher:
    """Stands in the place of a vocoder."""

    device = torch.device("cpu")

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise _VocoderReached(VocoderCall(args, named))

    decode = __call__


class FrameStreamer:
    """Sends each frame of codes one frame later.

    The last one may be a mark of the end.
    """

    def __init__(self, send: Callable[[VocoderCall], None]) -> None:
        self._send = send
        self._begun = False
        self._last: Tensor | None = None

    def put(self, frames: Tensor) -> None:
        """Take a frame [1, K], or the prompt, which comes first."""
        if self._last is not None:
            self._send(VocoderCall([self._last[..., None]], {}, partial=True))
        self._last = frames if self._begun else None
        self._begun = True

    def end(self) -> None:
        """Keep the last frame: it is part of the whole call."""


def find_run(module: Any) -> Any:
    """Return the function of ``module`` that speaks."""
    return module.generate if module.can_generate() else module.forward


def call_vocoder(module: Any, row: SpeechClass, inputs: Mapping[str, Any], processor: Any) -> VocoderCall:
    """Return the call of the vocoder with which ``module`` ends for ``inputs``."""
    run, catcher = find_run(module), CallCatcher()
    name = row.entry.partition(".")[0]
    if name and not row.other:
        module._modules.pop(name, None)
        setattr(module, name, catcher)
    elif "vocoder" in inspect.signature(run).parameters:
        inputs = {**inputs, "vocoder": catcher}
    try:
        result = run(**inputs)
        if row.other and row.processor:
            processor.audio_tokenizer = catcher
            processor.batch_decode(result)
        elif row.other:
            catcher(result.spectrogram)
    except _VocoderReached as reached:
        return reached.call
    raise errors.StageFailed(f"{type(module).__name__} did not call its vocoder")


class ClassSpeaker(LoadedComponent):
    """See ``contract.Speaker``. ``row`` has what the library does not say about the class of ``module``."""

    def __init__(self, module: Any, row: SpeechClass, checkpoint: Path) -> None:
        super().__init__(module)
        self._model, self.row = module, row
        self._accepts = inspect.signature(find_run(module)).parameters
        self.processor: Any = load_processor(row, checkpoint)
        self.sets_speed = "speaking_rate" in self._accepts
        self._files = {path.stem: path for path in sorted((checkpoint / VOICES_FOLDER).glob("*.npy"))}
        if "speaker_embeddings" in self._accepts and not self._files:
            raise errors.Fatal(f"{checkpoint} has no voices: put each as float32 NAME.npy into {VOICES_FOLDER}/")
        self.voices = self._list_voices()
        self._check: Callable[[], None] | None = None
        for part in module.modules():
            if isinstance(part, PreTrainedModel):
                part.register_forward_pre_hook(self._check_step)

    def _check_step(self, *_: Any) -> None:
        if self._check is not None:
            self._check()

    def _list_voices(self) -> Sequence[str]:
        if "speaker_embeddings" in self._accepts:
            return [*self._files]
        presets = getattr(self.processor, "available_voice_presets", None)
        languages = getattr(getattr(self._model, "generation_config", None), "vocoder_lang_code_to_id", None)
        count = getattr(self._model.config, "num_speakers", None) or 1
        numbers = range(count) if "speaker_id" in self._accepts and count > 1 else ()
        return self.row.voices or [*(presets or languages or map(str, numbers))] or [DEFAULT_VOICE]

    def require_options(self, options: SpeakingOptions) -> None:
        """See ``contract.Speaker``."""
        if options.voice not in {*self.voices, *OPENAI_VOICES}:
            raise errors.BadRequest(
                f"unknown voice {options.voice[:64]!r}: use one of {', '.join(self.voices)}", param="voice"
            )
        for name in ("temperature", "max_tokens"):
            if getattr(options, name) is not None and "generation_config" not in self._accepts:
                raise errors.BadRequest(f"{type(self._model).__name__} has no {name}: omit it", param=name)

    def split_text(self, text: str) -> Sequence[str]:
        """See ``contract.Speaker``."""
        parts = _SENTENCE_END.split(text) if self.row.sentences else [text]
        options = SpeakingOptions(self.voices[0])
        # One token is the mark that some tokenizers add to every text.
        readable = [part for part in parts if part.strip() and self.count_tokens(part, options) > 1]
        if not readable:
            raise errors.BadRequest("the model cannot read any character of the text", param="text")
        return readable

    def count_tokens(self, text: str, options: SpeakingOptions) -> int:
        """See ``contract.Speaker``."""
        return int(self.make_inputs(text, options)["input_ids"].shape[-1])

    def make_inputs(self, text: str, options: SpeakingOptions) -> dict[str, Any]:
        """Return the arguments of the model for ``text``."""
        voice, extras = options.voice, {}
        if voice not in self.voices:
            voice = self.voices[OPENAI_VOICES.index(voice) % len(self.voices)]
        if hasattr(self.processor, "available_voice_presets") and voice != DEFAULT_VOICE:
            extras["voice_preset"] = voice
        inputs: dict[str, Any] = {}
        if "tgt_lang" in self._accepts:
            extras["src_lang"] = inputs["tgt_lang"] = voice
        elif "speaker_embeddings" in self._accepts:
            vector = torch.from_numpy(np.load(self._files[voice], allow_pickle=False))
            inputs["speaker_embeddings"] = vector.reshape(1, -1).to(self._model.dtype)
        elif "speaker_id" in self._accepts and voice.isdigit():
            inputs["speaker_id"] = int(voice)
        prompt = self.row.prompt.format(voice=voice, text=text)
        inputs.update(self.processor(text=prompt, return_tensors="pt", **extras))
        inputs.pop("token_type_ids", None)
        return {name: each.to(self._model.device) if hasattr(each, "to") else each for name, each in inputs.items()}

    def _extra_options(self, options: SpeakingOptions) -> dict[str, Any]:
        more: dict[str, Any] = dict(self.row.options)
        if self.sets_speed:
            more["speaking_rate"] = options.speed
        if options.temperature is not None:
            more["do_sample"] = options.temperature > 0
            more |= {"temperature": options.temperature} if options.temperature > 0 else {}
        if options.max_tokens is not None:
            more["max_new_tokens"] = options.max_tokens
        return more

    def speak(
        self,
        text: str,
        options: SpeakingOptions,
        seed: int,
        send: Callable[[VocoderCall], None],
        check: Callable[[], None],
    ) -> None:
        """See ``contract.Speaker``."""
        inputs = {**self.make_inputs(text, options), **self._extra_options(options)}
        if self.row.streams:
            inputs["streamer"] = FrameStreamer(send)
        self._check = check
        torch.manual_seed(seed)
        try:
            send(call_vocoder(self._model, self.row, inputs, self.processor))
        finally:
            self._check = None


class ClassSynthesizer(LoadedComponent):
    """See ``contract.Synthesizer``: the vocoder ``row.entry`` of ``module``."""

    def __init__(self, module: Any, row: SpeechClass) -> None:
        super().__init__(module)
        self._entry = module
        for name in filter(None, row.entry.split(".")):
            self._entry = getattr(self._entry, name)
        self._device = next(module.parameters()).device
        part = module.get_submodule(row.parts[0]) if row.parts else module
        configs = [getattr(each, "config", None) for each in (part, module)]
        self.rate = int(next(filter(None, (getattr(each, "sampling_rate", 0) for each in configs)), row.rate))
        self.codes_per_second = float(getattr(configs[0], "frame_rate", 0.0)) if row.streams else 0.0

    def synthesize(self, call: VocoderCall) -> Tensor:
        """See ``contract.Synthesizer``."""
        keywords = {name: self._place(value) for name, value in call.named.items()}
        return flatten_samples(self._entry(*map(self._place, call.args), **keywords))

    def _place(self, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, Tensor) else value


def flatten_samples(output: Any) -> Tensor:
    """Return the samples [n] in what a vocoder returns. Raises ``StageFailed`` for several channels."""
    samples = getattr(output, "audio_values", output)
    samples = samples[0] if isinstance(samples, (tuple, list)) else samples
    if samples.numel() != samples.shape[-1]:
        raise errors.StageFailed(f"the vocoder made samples of shape {[*samples.shape]}: only mono is served")
    return samples.reshape(-1).float().clamp(-1, 1)


def load_processor(row: SpeechClass, checkpoint: Path) -> Any:
    """Return the checkpoint's processor or tokenizer. Raises ``Fatal`` if a library that it needs is missing."""
    try:
        processor = (AutoProcessor if row.processor else AutoTokenizer).from_pretrained(
            checkpoint, local_files_only=True
        )
        if getattr(processor, "is_uroman", False) and importlib.util.find_spec("uroman") is None:
            raise ImportError("its tokenizer needs the library uroman: pip install uroman")
        if not row.processor:
            processor("a")
    except (ImportError, OSError, ValueError) as error:
        raise errors.Fatal(f"the text of {checkpoint} cannot be read: {error}") from error
    return processor


class SpeechFamily:
    """See ``contract.ModelFamily``."""

    name = "text_to_speech"
    components = ("speaker", "vocoder")

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load ``vocoder``, or ``speaker``, all other parts."""
        if component not in self.components:
            raise no_component(self.name, self.components, component)
        try:
            config = AutoConfig.from_pretrained(checkpoint, local_files_only=True)
        except (ImportError, OSError, ValueError) as error:
            raise errors.Fatal(f"{checkpoint} has no configuration that transformers can read: {error}") from error
        cls, row = find_speech_class(config)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        if component == "vocoder" and row.other:
            other = getattr(transformers, row.other)
            source = find_vocoder(checkpoint, row)
            return ClassSynthesizer(loading.load_model(other, source, attn_implementation="eager", **options), row)
        drop = row.parts if component == "speaker" else list_other_parts(cls, config, row)
        attention = loading.find_attention(cls, config)
        module = loading.load_model(cls, checkpoint, drop=drop, attn_implementation=attention, **options)
        return ClassSynthesizer(module, row) if component == "vocoder" else ClassSpeaker(module, row, checkpoint)

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Any:
        """This family has no language model: always ``NotFound``."""
        raise no_component(self.name, self.components, "thinker")


def list_other_parts(cls: Any, config: Any, row: SpeechClass) -> list[str]:
    """Return the paths of the parts of ``cls`` outside its vocoder."""
    with torch.device("meta"):
        children = [(name, part) for name, part in cls(config).named_children() if name not in row.parts]
    hollow = [f"{name}.{inner}" for name, part in children if name == row.hollow for inner, _ in part.named_children()]
    return [*hollow, *(name for name, _ in children if name != row.hollow)]


def find_vocoder(checkpoint: Path, row: SpeechClass) -> Path:
    """Return the directory of the model that is the vocoder of ``checkpoint``. Raises ``Fatal`` if there is none."""
    if (checkpoint / VOCODER_FOLDER).is_dir():
        return checkpoint / VOCODER_FOLDER
    source = row.other_checkpoint
    with suppress(OSError, ValueError):
        about = json.loads((checkpoint / "processor_config.json").read_text()).get("audio_tokenizer") or {}
        source = about.get("audio_tokenizer_name_or_path", source)
    try:
        return checkpoints.resolve_checkpoint(source)
    except errors.OmnibusError as error:
        raise errors.Fatal(
            f"the vocoder of {checkpoint} is another checkpoint, {source}: download it, or put it into "
            f"{checkpoint / VOCODER_FOLDER} ({error.message})"
        ) from error


FAMILY = SpeechFamily()
