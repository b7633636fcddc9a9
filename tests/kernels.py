"""Run the tests marked ``numeric`` with kernels of other processors: ``make test-kernels``.

    python -m tests.kernels [--settings avx2,baseline,shapes] [arguments of pytest]

Promises about bits and bounds in docs/reliability.md apply to every processor, but one machine has only one. Its
libraries can imitate an older processor. They can also round products of matrices as none of the available processors
does.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class KernelSetting(NamedTuple):
    """Variables of the environment, and plugins of pytest, that choose kernels."""

    variables: Mapping[str, str]
    plugins: tuple[str, ...] = ()


SETTINGS = {
    "avx2": KernelSetting({"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "baseline": KernelSetting(
        {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    ),
    "shapes": KernelSetting({}, ("tests.shape_kernels",)),
}


_DIRECTORIES = [f"tests/unit/{name}" for name in ("encoder", "generator", "llm", "models")]


def run_setting(name: str, arguments: Sequence[str]) -> int:
    """Run the numeric tests with one setting; the exit status of pytest."""
    setting = SETTINGS[name]
    plugins = [word for plugin in setting.plugins for word in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-m", "numeric", *plugins, *arguments, *_DIRECTORIES]
    print(f"kernels: {name} {dict(setting.variables)} {' '.join(setting.plugins)}", flush=True)
    return subprocess.run(command, env={**os.environ, **setting.variables}, check=False).returncode


def main() -> int:
    """Run each setting, also after one that failed; 0 if all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description=__doc__)
    parser.add_argument("--settings", default=",".join(SETTINGS), help="names, with commas between them")
    options, arguments = parser.parse_known_args()
    names = options.settings.split(",")
    if unknown := set(names) - set(SETTINGS):
        parser.error(f"unknown settings {sorted(unknown)}; there are {sorted(SETTINGS)}")
    failures = [name for name in names if run_setting(name, arguments)]
    print(f"failed with: {', '.join(failures)}" if failures else f"passed with: {', '.join(names)}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
