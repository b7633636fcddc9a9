"""Janus: it chats about pictures, and makes them token by token."""

from omnibus.families.specs._templates import FamilyDeclaration, image_generation, vision_language

_TABLE = "model.language_model.embed_tokens."
_CHATS, _PAINTS = vision_language("", "image"), image_generation("")

FAMILY = FamilyDeclaration(
    components=[*_CHATS.components, *_PAINTS.components],
    encoders=_CHATS.encoders,
    tasks={**_CHATS.tasks, **_PAINTS.tasks},
    options={**_CHATS.options, **_PAINTS.options},
    # A request goes through the part of a path that it uses: E>L or T>D>V.
    paths=[
        {"options": ["E", "L", "T", "D", "V"], "share": 70},
        {"options": ["EL", "TDV"], "share": 30},
        {"options": ["E", "EL", "TDV"], "share": 0},
    ],
    tiny="janus-tiny",
    weights={
        "vision": ("model.vision_model.", "model.aligner."),
        "thinker": ("model.language_model.", _TABLE, "lm_head."),
        "text_encoder": (_TABLE,),
        "dit": ("model.language_model.", "model.generation_"),
        "vae": ("model.vqmodel.",),
    },
)
