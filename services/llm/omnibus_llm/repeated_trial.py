"""``python -m omnibus_llm.repeated_trial DIR [--weights]``: repeats the trial of a checkpoint's class.

It prints an ``omnibus.checkpoints.report.TrialReport``, see ``omnibus.process.run_module``. The trial is the one before
an executor first serves the class, with a small random copy: no weights are loaded, except those of speech models.
With ``--weights``, the checkpoint's own model is compared instead, see ``weights_trial``.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec

from omnibus.checkpoints.gguf_header import is_gguf
from omnibus.checkpoints.report import TrialReport
from omnibus.errors import Fatal
from omnibus.process import run_module

#: Families whose classes are tried, and the component that an executor tries; "" for all together.
_TRIED = {
    "causal_lm": "thinker",
    "multimodal_lm": "thinker",
    "speech_to_text": "transcriber",
    "text_to_speech": "speaker",
    "modular_image": "",
    "modular_video": "",
}


def repeat_trial(checkpoint: Path) -> TrialReport:
    """Repeat the trial of the class of ``checkpoint``, and store its verdict. Raises as ``families.family_of``."""
    from omnibus_models import verdicts
    from omnibus_models.families import MULTIMODAL, family_of

    family = family_of(checkpoint)
    component = _TRIED.get("multimodal_lm" if family.name in MULTIMODAL else family.name)
    if component is None or (component == "thinker" and family.name != "causal_lm" and is_gguf(checkpoint)):
        return TrialReport(family.name, True, "no trial: the family has code of its own, which tests compare")
    with verdicts.repeat_trials() as comparisons:
        try:
            outcome = _admit_component(family, component, checkpoint) if component else _admit_pipeline(checkpoint)
        except Fatal as error:
            return TrialReport(family.name, False, error.message, comparisons)
    return TrialReport(family.name, True, outcome, comparisons)


def _admit_component(family: Any, component: str, checkpoint: Path) -> str:
    """Return how executors run the component. Raises ``Fatal`` if they do not."""
    from omnibus_llm.engine import admission, media_admission, recognizer_admission
    from omnibus_llm.engine import media_admission as speaker_admission
    from omnibus_models.examine.meta_loader import DryLoader

    if component == "speaker":
        speaker_admission.admit_speaker(family.load(component, checkpoint))
        return "served: the model and its vocoder, together or apart"
    with DryLoader().replace_loaders():
        model = family.load(component, checkpoint)
    if component == "transcriber":
        recognizer_admission.admit_recognizer(model)
        return f"served: {'several windows' if model.batches else 'one window'} at a time"
    (admission.admit_decoder if family.name == "causal_lm" else media_admission.admit_thinker)(model)
    mode = admission.Mode(model.batches, model.splits_prompts, model.takes_masks)
    return f"served: {admission.describe_mode(mode)}"


def compare_weights(checkpoint: Path) -> TrialReport:
    """Compare the weights of ``checkpoint`` as they are served with the library's whole model, in float32.

    Raises as ``families.family_of``.
    """
    from omnibus_llm import weights_trial
    from omnibus_models.families import MULTIMODAL, family_of

    family = family_of(checkpoint)
    kind = "multimodal_lm" if family.name in MULTIMODAL else family.name
    compare = {"causal_lm": weights_trial.compare_text, "multimodal_lm": weights_trial.compare_media}.get(kind)
    if compare is None or checkpoint.is_file():
        return TrialReport(family.name, True, "not compared: only directories of automatic language models are")
    comparisons = compare(family, checkpoint)
    is_equal = bool(comparisons) and not any(each.fault for each in comparisons)
    outcome = (
        "the weights give the logits of the library"
        if is_equal
        else "the weights do not give the logits of the library"
    )
    return TrialReport(family.name, is_equal, outcome, comparisons)


def _admit_pipeline(checkpoint: Path) -> str:
    """Return what the pipeline generates from. Raises ``Fatal`` if its components do not give its pixels."""
    from omnibus_models.modular import trial
    from omnibus_models.modular.family import find_class

    verdict = trial.admit_pipeline(find_class(checkpoint))
    faults = {"text": verdict.text, "an image": verdict.image, "an image and a mask": verdict.mask}
    return f"served: from {', from '.join(name for name, fault in faults.items() if not fault)}"


if __name__ == "__main__":
    make_report = compare_weights if "--weights" in sys.argv else repeat_trial
    sys.exit(run_module.report_answer(lambda: msgspec.to_builtins(make_report(Path(sys.argv[1])))))
