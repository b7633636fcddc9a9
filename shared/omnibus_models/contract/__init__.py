"""The typed contract between model families and the services that run them.

A *family* (``omnibus_models.families.*``) implements one architecture: it loads one component alone, prepares its
inputs and runs it. A *service* implements batching, streams and requests, for any architecture. Shapes: ``B`` rows of a
batch, ``T`` positions, ``H`` hidden width, ``V`` vocabulary. All tensors are on ``device``. Families never keep
per-request state on a module.
"""

from omnibus_models.contract.base import (
    Encoded,
    LoadedComponent,
    MediaEncoder,
    ModelComponent,
    Prepared,
    TokenSamplingParams,
)
from omnibus_models.contract.diffusion import (
    NO_CHANGE,
    AudioDecoder,
    Denoiser,
    Denoising,
    FrameEncoder,
    ImageChange,
    ImageDecoder,
    ImageSpec,
    PriorModel,
    Resumable,
    Stepper,
    TextEncoder,
    VideoDecoder,
)
from omnibus_models.contract.family import ModelFamily, no_component
from omnibus_models.contract.language import (
    PLAIN_PROMPT,
    CrossDecoder,
    Decoder,
    MediaRun,
    PrefillInputs,
    PromptLayout,
    PromptOptions,
    Reader,
    Thinker,
    TokenizedPrompt,
)
from omnibus_models.contract.recognition import (
    AudioWindow,
    LogitRule,
    RecognitionOptions,
    SpeechDecoder,
    SpeechEncoder,
    TimedWord,
    TokenSegment,
    read_windows,
)
from omnibus_models.contract.retrieval import TextEmbedder, TextReranker
from omnibus_models.contract.speech import (
    Code,
    CodePredictor,
    Speaker,
    SpeakingOptions,
    Synthesizer,
    Talker,
    Vocoder,
    VocoderCall,
    Vocoding,
)

__all__ = [
    "NO_CHANGE",
    "PLAIN_PROMPT",
    "AudioDecoder",
    "AudioWindow",
    "Code",
    "CodePredictor",
    "CrossDecoder",
    "Decoder",
    "Denoiser",
    "Denoising",
    "Encoded",
    "FrameEncoder",
    "ImageChange",
    "ImageDecoder",
    "ImageSpec",
    "LoadedComponent",
    "LogitRule",
    "MediaEncoder",
    "MediaRun",
    "ModelComponent",
    "ModelFamily",
    "PrefillInputs",
    "Prepared",
    "PriorModel",
    "PromptLayout",
    "PromptOptions",
    "Reader",
    "RecognitionOptions",
    "Resumable",
    "Speaker",
    "SpeakingOptions",
    "SpeechDecoder",
    "SpeechEncoder",
    "Stepper",
    "Synthesizer",
    "Talker",
    "TextEmbedder",
    "TextEncoder",
    "TextReranker",
    "Thinker",
    "TimedWord",
    "TokenSamplingParams",
    "TokenSegment",
    "TokenizedPrompt",
    "VideoDecoder",
    "Vocoder",
    "VocoderCall",
    "Vocoding",
    "no_component",
    "read_windows",
]
