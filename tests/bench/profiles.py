"""Encoder times that ``omnibus profile`` measures, over those without their cache.

    python -m tests.bench.profiles

    profile.encoder_over_truth   of option E, a vision encoder alone
    profile.el_over_truth        of option EL, the same together with a language model

The defaults of ``omnibus profile`` apply; for the reference, the cache is turned off by hand. The tiny model gets
images of 896 x 896, so the encoder is most of the work. The same few images are sent repeatedly, and cached results
cost nothing. Both sides are measured alternately. The ratio, or its inverse if larger, is that of the least seconds,
because any excess is due to other processes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from omnibus import profile
from omnibus.process.spec import PACKAGE_PATH

_ROUNDS = 2
_NAMES = {"E": "profile.encoder_over_truth", "EL": "profile.el_over_truth"}
_MODEL, _TYPE = "qwen2.5-vl-tiny", "vision+thinker"
_WORKLOAD = {
    "requests": [
        {
            "body": {
                "messages": [{"role": "user", "content": [{"image": [896, 896]}]}],
                "max_tokens": 4,
                "ignore_eos": True,
            }
        }
    ]
}


def _measured_seconds(here: Path, **environment: str) -> dict[str, float]:
    """Seconds per request of each option."""
    (here / "workload.json").write_text(json.dumps(_WORKLOAD))
    out = here / "profile.json"
    subprocess.run(
        [
            sys.executable, "-m", "omnibus.cli", "profile", _MODEL, "--workload", "workload.json", "--out", out.name,
            "--seconds", "1", "--requests", "8", "--most", "4", "--most-others", "1", "--option", "E", "--option", "EL",
            "--json",
        ],
        cwd=here,
        env={**os.environ, "PYTHONPATH": PACKAGE_PATH, "XDG_RUNTIME_DIR": str(here), **environment},
        stdout=subprocess.DEVNULL,
        check=True,
    )  # fmt: skip
    model_profile = profile.decode_profile(out.read_bytes())
    whole = ("vision",), ("vision", "thinker")
    return {
        name: work.seconds
        for name, role in zip(_NAMES, whole, strict=True)
        for work in model_profile.options[name].work
        if (work.type, work.components) == (_TYPE, role)
    }


def main() -> None:
    least: dict[bool, dict[str, float]] = {False: {}, True: {}}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(_ROUNDS):
            for off in (False, True):
                seconds = _measured_seconds(Path(directory), **({"OMNIBUS_EXECUTOR_CACHE_MIB": "0"} if off else {}))
                least[off] = {name: min(seconds[name], least[off].get(name, seconds[name])) for name in _NAMES}
    ratios = {name: least[False][name] / least[True][name] for name in _NAMES}
    print(json.dumps({_NAMES[name]: max(ratio, 1 / ratio) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
