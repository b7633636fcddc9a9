"""The catalogue's encoders accept every input of the library's own processor."""

from pathlib import Path

import pytest
from transformers import AutoProcessor

from omnibus.families.specs import KNOWN
from omnibus_models import families, tiny

#: Parts of a processor, by the modality that each prepares.
PARTS = {"image_processor": "image", "video_processor": "video", "feature_extractor": "audio"}


@pytest.mark.parametrize("name", [name for name, entry in KNOWN.items() if entry.encoders])
def test_each_input_of_the_librarys_processor_has_an_encoder_that_takes_it(tmp_path: Path, name: str):
    checkpoint = tiny.build(name, tmp_path / name)
    parts = AutoProcessor.from_pretrained(checkpoint).get_attributes()
    modalities = {PARTS[part] for part in parts if part in PARTS}
    encoders = KNOWN[name].encoders
    if name == "multimodal_lm":  # those of its checkpoint, not all that any may have
        encoders = {kind: by for kind, by in encoders.items() if kind in modalities}

    assert modalities == {*encoders}
    for component in {*encoders.values()}:
        encoder = families.load_family(name).load(component, checkpoint)
        assert encoder.modalities == {kind for kind, by in encoders.items() if by == component}
