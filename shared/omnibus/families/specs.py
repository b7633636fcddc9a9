"""Built-in model families in the control plane: a table of plain data, without torch.

A family called ``x`` is the row ``x`` of this table and the modules ``omnibus_models.families.x`` and
``omnibus_models.tiny.x``. Those in ``omnibus_models.families.MULTIMODAL`` have only the latter. Its name is the
``model_type`` of its checkpoints, or the class of their diffusers pipeline in snake case without ``Pipeline``.
``causal_lm`` is any other language model of transformers, ``multimodal_lm`` any other one with encoders,
``sentence_encoder`` any text encoder, ``dual_encoder`` any encoder of texts and images to one space, ``cross_encoder``
any reranker, ``speech_to_text`` any recognizer with an encoder and a decoder, and ``text_to_speech`` any text-to-speech
model with a vocoder. ``modular_image`` and ``modular_video`` are any other pipeline that diffusers has in blocks.
"""

from collections.abc import Mapping, Sequence

from omnibus.families.templates import (
    LTX2,
    MODULAR,
    FamilyDeclaration,
    image_editing,
    image_generation,
    image_generation_with_prior,
    image_text_embedder,
    image_to_image,
    language_model,
    omni_model,
    speech_recognizer,
    speech_synthesizer,
    text_embedder,
    text_reranker,
    video_generation,
    vision_language,
)

Weights = Mapping[str, Sequence[str]]

_QWEN_VL: Weights = {"vision": ("visual.", "model.visual."), "thinker": ("model.", "lm_head.", "language_model.")}

#: By the names of tensors on the hub, and as the library saves them.
_LLAVA: Weights = {
    "vision": (
        *("vision_tower.", "multi_modal_projector.", "image_newline"),
        *("model.vision_tower.", "model.multi_modal_projector.", "model.image_newline"),
    ),
    "thinker": ("language_model.", "model.language_model.", "lm_head."),
}

#: The projector belongs to the language model, so that models of all sizes can share one encoder.
_GEMMA3: Weights = {
    "vision": ("vision_tower.", "model.vision_tower."),
    "thinker": ("model.", "lm_head.", "language_model.", "multi_modal_projector."),
}

_MLLAMA: Weights = {
    "vision": (
        *("vision_model.", "model.vision_model."),
        *("multi_modal_projector.", "model.multi_modal_projector."),
    ),
    "thinker": ("model.", "lm_head.", "language_model."),
}


#: The text tower has all that is not the image tower's, by whatever name.
_TOWERS: Weights = {
    "vision": ("vision_model.", "image_model.", "visual_projection.", "image_projection."),
    "embedder": ("",),
}


#: The decoder has all that is not the encoder's, by whatever name.
_RECOGNIZER: Weights = {"audio": ("model.encoder.", "speecht5.encoder.", "speech_encoder."), "transcriber": ("",)}


#: The speaker has all that is not the vocoder's, by whatever name.
_SYNTHESIZER: Weights = {"vocoder": ("decoder.", "vocoder.", "codec_model.", "audio_encoder."), "speaker": ("",)}


def _qwen_omni_weights(vocoder: str) -> Weights:
    return {
        "vision": ("thinker.visual.",),
        "audio": ("thinker.audio_tower.",),
        "thinker": ("thinker.",),
        "talker": ("talker.",),
        "vocoder": (vocoder,),
    }


def _janus() -> FamilyDeclaration:
    """Return a model that chats about images and generates them autoregressively."""
    embeddings = "model.language_model.embed_tokens."
    chat, image = vision_language("", "", "image"), image_generation("", "")
    return FamilyDeclaration(
        title="Janus",
        components=[*chat.components, *image.components],
        encoders=chat.encoders,
        tasks={**chat.tasks, **image.tasks},
        options={**chat.options, **image.options},
        # A request goes through the part of a path that it uses: E>L or T>D>V.
        paths=[
            {"options": ["E", "L", "T", "D", "V"], "share": 70},
            {"options": ["EL", "TDV"], "share": 30},
            {"options": ["E", "EL", "TDV"], "share": 0},
        ],
        tiny="janus-tiny",
        weights={
            "vision": ("model.vision_model.", "model.aligner."),
            "thinker": ("model.language_model.", embeddings, "lm_head."),
            "text_encoder": (embeddings,),
            "dit": ("model.language_model.", "model.generation_"),
            "vae": ("model.vqmodel.",),
        },
    )


#: All families by name: its title, its tiny model, and more of its template.
KNOWN: dict[str, FamilyDeclaration] = {
    "causal_lm": language_model("language models of transformers", "causal-lm-tiny"),
    "cross_encoder": text_reranker("Cross-encoders of transformers", "cross-encoder-tiny"),
    "dual_encoder": image_text_embedder(
        "CLIP, SigLIP and other encoders of texts and images", "dual-encoder-tiny", weights=_TOWERS
    ),
    "gemma3": vision_language("Gemma 3", "gemma3-tiny", "image", weights=_GEMMA3),
    "glm_image": image_generation_with_prior("GLM-Image", "glm-image-tiny"),
    "internvl": vision_language("InternVL3", "internvl-tiny", "image", "video", weights=_LLAVA),
    "janus": _janus(),
    "llava": vision_language("LLaVA-1.5", "llava-tiny", "image", weights=_LLAVA),
    "llava_next": vision_language("LLaVA-NeXT", "llava-next-tiny", "image", weights=_LLAVA),
    "llava_onevision": vision_language("LLaVA-OneVision", "llava-onevision-tiny", "image", "video", weights=_LLAVA),
    "ltx2": video_generation("LTX-2", "ltx2-tiny", video_limits=LTX2),
    "mllama": vision_language("Llama 3.2 Vision", "llama-3.2-vision-tiny", "image", weights=_MLLAMA),
    "modular_image": image_to_image("image pipelines of diffusers", "modular-image-tiny"),
    "modular_video": image_to_image(
        "video pipelines of diffusers", "modular-video-tiny", "decode-video", video_limits=MODULAR
    ),
    "multimodal_lm": vision_language(
        "multimodal language models of transformers",
        "multimodal-lm-tiny",
        *("image", "video", "audio"),
        encoder="encoder",
        modalities_by_checkpoint=True,
    ),
    "qwen2": language_model("Qwen2 and Qwen2.5", "qwen2-tiny"),
    "qwen2_5_omni": omni_model(
        "Qwen2.5-Omni",
        "qwen2.5-omni-tiny",
        ["Chelsie", "Ethan"],
        weights=_qwen_omni_weights("token2wav."),
        audio_window_seconds=2.0,
    ),
    "qwen2_5_vl": vision_language("Qwen2.5-VL", "qwen2.5-vl-tiny", "image", "video", weights=_QWEN_VL),
    "qwen2_vl": vision_language("Qwen2-VL", "qwen2-vl-tiny", "image", "video", weights=_QWEN_VL),
    "qwen3": language_model("Qwen3", "qwen3-tiny"),
    "qwen3_omni_moe": omni_model(
        "Qwen3-Omni", "qwen3-omni-tiny", ["Aiden", "Chelsie", "Ethan"], weights=_qwen_omni_weights("code2wav.")
    ),
    "qwen3_vl": vision_language("Qwen3-VL", "qwen3-vl-tiny", "image", "video", weights=_QWEN_VL),
    "qwen_image": image_generation("Qwen-Image", "qwen-image-tiny"),
    "qwen_image_edit": image_editing("Qwen-Image-Edit", "qwen-image-edit-tiny"),
    "sentence_encoder": text_embedder("Sentence encoders of transformers", "sentence-encoder-tiny"),
    "speech_to_text": speech_recognizer(
        "Whisper and other recognizers of transformers", "speech-to-text-tiny", weights=_RECOGNIZER
    ),
    "text_to_speech": speech_synthesizer(
        "VITS and other text-to-speech models of transformers", "text-to-speech-tiny", weights=_SYNTHESIZER
    ),
}

#: Families of embedders and rerankers, whose checkpoints may have the ``model_type`` of another family.
RETRIEVAL = frozenset({"cross_encoder", "sentence_encoder"})

#: Checkpoints that users ask about but that are not served, by their type in the configuration, and the reason.
ABSENT: dict[str, str] = {
    "NVLM_D": "NVLM-D has no class in transformers; the code that comes with its checkpoint is not run",
    "internvl_chat": "this InternVL brings code of its own, which is not run; its twin with -hf at the end is served",
    "multi_modality": "this Janus is of before transformers had a class for it; deepseek-community/Janus-* is served",
}
