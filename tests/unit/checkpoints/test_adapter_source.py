"""Adapters that can be loaded while a system serves.

They must be in one directory, links are followed, and each is read in its current state.
"""

from pathlib import Path

import pytest

from omnibus.checkpoints.adapters import AdapterSource, describe_adapter, open_adapter
from omnibus.errors import BadRequest, Conflict, Forbidden, OmnibusError
from tests.unit.checkpoints.test_adapters import write_adapter

SETTING = "OMNIBUS_X_ADAPTERS_DIR"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The allowed directory with one adapter, and a second adapter outside it."""
    directory = tmp_path / "adapters"
    (directory / "team").mkdir(parents=True)
    write_adapter(directory / "team" / "pirate")
    write_adapter(tmp_path / "outside")
    return directory


def test_a_source_is_the_path_from_the_directory_that_is_allowed_and_a_digest(root: Path) -> None:
    source, read = describe_adapter("team/pirate", str(root), SETTING)
    absolute, _ = describe_adapter(str(root / "team" / "pirate"), str(root), SETTING)

    assert (source.path, len(source.sha256), read.rank) == ("team/pirate", 64, 4)
    assert absolute == source
    assert open_adapter("pirate", source, str(root), SETTING).modules == read.modules


def test_a_link_inside_is_followed_to_where_it_leads(root: Path) -> None:
    (root / "alias").symlink_to(root / "team" / "pirate")

    assert describe_adapter("alias", str(root), SETTING)[0].path == "team/pirate"


@pytest.mark.parametrize(
    ("path", "kind", "fault"),
    [
        ("../outside", Forbidden, "not below OMNIBUS_X_ADAPTERS_DIR"),
        ("/etc", Forbidden, "not below OMNIBUS_X_ADAPTERS_DIR"),
        ("linked", Forbidden, "not below OMNIBUS_X_ADAPTERS_DIR"),
        ("weights-elsewhere", Forbidden, "not below OMNIBUS_X_ADAPTERS_DIR"),
        ("a\0b", BadRequest, "unknown directory"),
        ("x" * 5000, BadRequest, "unknown directory"),
        ("nobody", BadRequest, "unknown directory"),
        ("team", BadRequest, "has no adapter_config.json"),
    ],
)
def test_nothing_else_is_read(root: Path, tmp_path: Path, path: str, kind: type[OmnibusError], fault: str) -> None:
    (root / "linked").symlink_to(tmp_path / "outside")
    partly = root / "weights-elsewhere"
    partly.mkdir()
    (partly / "adapter_config.json").write_bytes((tmp_path / "outside" / "adapter_config.json").read_bytes())
    (partly / "adapter_model.safetensors").symlink_to(tmp_path / "outside" / "adapter_model.safetensors")

    with pytest.raises(kind, match=fault):
        describe_adapter(path, str(root), SETTING)


def test_without_a_directory_nothing_is_loaded_and_the_setting_is_named(root: Path) -> None:
    with pytest.raises(Forbidden, match=f"set {SETTING}"):
        describe_adapter(str(root / "team" / "pirate"), "", SETTING)


def test_files_that_have_changed_are_another_adapter(root: Path) -> None:
    source, _ = describe_adapter("team/pirate", str(root), SETTING)
    write_adapter(root / "team" / "pirate", lora_alpha=16)

    with pytest.raises(Conflict, match="'pirate' have changed"):
        open_adapter("pirate", source, str(root), SETTING)
    assert describe_adapter("team/pirate", str(root), SETTING)[0] != AdapterSource("team/pirate", source.sha256)
