"""Janus: it chats about pictures, and makes them token by token."""

from omnibus.known._shape import Known, pictures, vision_language

_CHATS, _PAINTS = vision_language("", "image"), pictures("")

FAMILY = Known(
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
        "thinker": ("model.language_model.", "lm_head."),
        "dit": ("model.generation_",),
        "vae": ("model.vqmodel.",),
    },
)
