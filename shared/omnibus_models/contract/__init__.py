"""The typed contract between model families and the services that run them.

A *family* (``omnibus_models.families.*``) knows one architecture: how to load one component alone,
how to prepare its inputs and how to run it. A *service* knows batching, streams and requests, and no
architecture. Shapes: ``B`` rows of a batch, ``T`` positions, ``H`` hidden width, ``V`` vocabulary.
All tensors live on ``device``; families never keep per-request state on a module.
"""

from omnibus_models.contract.base import Component, Encoded, Encoder, Loaded, Prepared, Sampling
from omnibus_models.contract.diffusion import (
    AudioDecoder,
    Denoiser,
    Denoising,
    ImageDecoder,
    Picture,
    Prior,
    Resumable,
    Stepper,
    TextEncoder,
    VideoDecoder,
)
from omnibus_models.contract.family import Family, no_component
from omnibus_models.contract.language import CrossDecoder, Decoder, Layout, Prefill, Prompt, Reader, Run, Thinker
from omnibus_models.contract.speech import Code, CodePredictor, Talker, Vocoder, Vocoding

__all__ = [
    "AudioDecoder",
    "Code",
    "CodePredictor",
    "Component",
    "CrossDecoder",
    "Decoder",
    "Denoiser",
    "Denoising",
    "Encoded",
    "Encoder",
    "Family",
    "ImageDecoder",
    "Layout",
    "Loaded",
    "Picture",
    "Prefill",
    "Prepared",
    "Prior",
    "Prompt",
    "Reader",
    "Resumable",
    "Run",
    "Sampling",
    "Stepper",
    "Talker",
    "TextEncoder",
    "Thinker",
    "VideoDecoder",
    "Vocoder",
    "Vocoding",
    "no_component",
]
