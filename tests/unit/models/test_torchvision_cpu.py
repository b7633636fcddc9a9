"""The shim makes a CUDA-linked torchvision importable. Importing the package stays light."""

import subprocess
import sys

import pytest
import torch

from omnibus_models import torchvision_cpu


def run_python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def unusable_alone() -> bool:
    return torch.version.cuda is None and run_python("import torchvision").returncode != 0


def test_transforms_work_with_the_shim() -> None:
    code = """
from omnibus_models import torchvision_cpu
torchvision_cpu.install_operators()
import torch
from torchvision.transforms import v2
print(tuple(v2.functional.resize(torch.zeros(3, 8, 8), [4, 4]).shape))
"""
    process = run_python(code)

    assert process.stdout.strip() == "(3, 4, 4)", process.stderr


def test_the_shim_is_what_makes_it_work() -> None:
    if not unusable_alone():
        pytest.skip("this torchvision imports without help")

    assert "torchvision::nms" in run_python("import torchvision").stderr
    assert run_python("from omnibus_models import families; import torchvision").returncode == 0


def test_installing_twice_changes_nothing() -> None:
    torchvision_cpu.install_operators()

    assert torchvision_cpu.install_operators() is False
    assert torchvision_cpu.is_needed() is False


def test_every_operator_has_a_schema_that_parses() -> None:
    names = [torch._C.parse_schema(f"torchvision::{schema}").name for schema in torchvision_cpu.SCHEMAS]

    assert len(set(names)) == 13


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("omnibus_models", {"torch", "transformers", "av", "PIL"}),
        ("omnibus_models.tiny", {"torch", "transformers", "av", "PIL"}),
        ("omnibus_models.families", {"transformers", "av", "PIL"}),
        ("omnibus_models.media", {"torch", "transformers", "av"}),
    ],
)
def test_importing_a_part_opens_no_other_door(module: str, absent: set[str]) -> None:
    process = run_python(f"import sys, {module}; print(*sys.modules)")

    assert not absent & set(process.stdout.split()), process.stderr
