"""Non-temporal copies of tensors begin at a default size. An operator can set another one."""

from pathlib import Path

import pytest

from omnibus.process.tuning import VARIABLE, copy_tunables

OURS = "glibc.cpu.x86_non_temporal_threshold=0x400000"


@pytest.mark.parametrize(
    ("tunables", "expected_variables"),
    [
        (None, {VARIABLE: OURS}),
        ("glibc.malloc.check=3", {VARIABLE: f"glibc.malloc.check=3:{OURS}"}),
        ("glibc.cpu.x86_non_temporal_threshold=0x100000", {}),
    ],
)
def test_a_threshold_is_set_beside_other_tunables_but_not_over_an_operators(tunables: str | None, expected_variables):
    assert copy_tunables({} if tunables is None else {VARIABLE: tunables}) == expected_variables


def test_images_of_containers_have_the_same_one():
    assert f"{VARIABLE}={OURS}" in (Path(__file__).parents[3] / "deploy/Dockerfile").read_text()
