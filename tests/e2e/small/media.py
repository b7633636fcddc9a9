"""Simulated models for blank images, silent blank videos, and embeddings.

The module also contains an app of a simulated model.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

from omnibus.families import catalog
from tests.e2e.small.streams import MODEL, TIMES, make_model
from tests.e2e.system import declare_model

PAINTER, DIRECTOR, EMBEDDER, APP = "painter", "director", "embedder", "reader"
_BATCH = {"base": 0.01}
_DENOISED = {
    "latents": {"shape": [1, 4, 4]},
    "sound": {"shape": [1, 4]},
    "progress": {"stream": True},
    "preview": {"stream": True, "shape": [8, 8, 3], "dtype": "uint8"},
}
#: Times of all components in seconds, and their outputs.
COMPONENTS: dict[str, Any] = {
    "text_encoder": {
        "batch": _BATCH,
        "outputs": {"embeds": {"shape": [1, 4, 8]}, "mask": {"shape": [1, 4]}, "tokens": {"data": {"value": 4}}},
    },
    "vae_encoder": {"batch": _BATCH, "inputs": ["media"], "outputs": {"latents": {"shape": [1, 1, 4, 4]}}},
    "dit": {"step": {"base": 0.02}, "steps": 4, "inputs": ["embeds", "mask"], "outputs": _DENOISED},
    "vae": {
        "batch": _BATCH,
        "inputs": ["latents"],
        "outputs": {
            "image": {"shape": [64, 64, 3], "dtype": "uint8"},
            "frames": {"stream": True, "shape": [9, 32, 64, 3], "dtype": "uint8"},
        },
    },
    "audio_vae": {
        "batch": _BATCH,
        "inputs": ["latents"],
        "outputs": {"audio": {"stream": True, "shape": [9000], "data": {"rate": 24000}}},
    },
    "embedder": {
        "batch": _BATCH,
        "outputs": {"embedding": {"shape": [1, 8]}, "tokens": {"data": {"value": 4}}},
    },
}
#: An app whose answer is that of the model.
SOURCE = f'''"""A chat of the model that speaks, in text."""

from omnibus.task import MLLM, ChatInput, ChatOutput, Think

CHAT = MLLM(encoders={{}}, thinker=Think(model="{MODEL}", component="thinker"))


async def serve(request: ChatInput) -> ChatOutput:
    return await CHAT(request)
'''


def app_flags(directory: Path) -> tuple[str, ...]:
    """The flags of ``omnibus up`` that have the app registered."""
    apps = directory / "apps"
    apps.mkdir()
    file = apps / f"{APP}.py"
    file.write_text(SOURCE)
    return "--apps-dir", str(apps), "--app", str(file)


def declare_models(directory: Path) -> dict[str, Any]:
    """All media models, each in one executor, and the speaking model."""
    times = deepcopy(TIMES)
    times["default"]["components"] |= {name: {"kind": "any", **each} for name, each in COMPONENTS.items()}
    speech_model = make_model(directory, times)
    checkpoint = directory / "times.json"
    media_models = {
        PAINTER: declare_model("qwen_image", checkpoint),
        DIRECTOR: declare_model("ltx2", checkpoint),
        EMBEDDER: catalog.embedding_declaration("qwen2_5_vl", str(checkpoint)),
    }
    return {MODEL: speech_model, **{name: _in_one(each) for name, each in media_models.items()}}


def _in_one(declaration: dict[str, Any]) -> dict[str, Any]:
    """``declaration`` with one option that has all components."""
    option = next(
        name for name, each in declaration["options"].items() if each["components"] == declaration["components"]
    )
    return {
        **declaration,
        "options": {option: declaration["options"][option]},
        "paths": [{"options": [option], "share": 1}],
    }
