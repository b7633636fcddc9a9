"""Checkpoints that are asked about and are not served, and why."""

#: By what their configuration calls them; named as ``omnibus.families.specs`` names those of families.
ABSENT: dict[str, str] = {
    "NVLM_D": "NVLM-D has no class in transformers; the code that comes with its checkpoint is not run",
    "internvl_chat": "this InternVL brings code of its own, which is not run; its twin with -hf at the end is served",
    "multi_modality": "this Janus is of before transformers had a class for it; deepseek-community/Janus-* is served",
}
