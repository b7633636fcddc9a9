"""App targets on the command line, and the sources sent for them."""

from pathlib import Path

import pytest

from omnibus.cli.app_target import locate_module, source_body
from omnibus.errors import BadRequest


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with apps: in a file, in a directory and in a package."""
    for name in ("poem.py", "team/novel.py", "pack/__init__.py", "pack/inner/__init__.py", "pack/inner/saga.py"):
        path = tmp_path / "apps" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    monkeypatch.chdir(tmp_path / "apps")
    return tmp_path / "apps"


@pytest.mark.parametrize(
    ("target", "module", "directory"),
    [
        ("poem.py", "poem", "."),
        ("team/novel.py", "novel", "team"),
        ("./team/../poem.py", "poem", "."),
        ("pack/inner/saga.py", "pack.inner.saga", "."),
        ("pack/inner/", "pack.inner", "."),
        ("pack/__init__.py", "pack", "."),
    ],
)
def test_a_file_is_a_module_in_a_directory(apps: Path, target: str, module: str, directory: str):
    assert source_body(target, None, str(apps)) == {"module": module, "directory": directory}


def test_what_looks_like_a_module_is_one(apps: Path):
    assert source_body("company.poems", None, str(apps)) == {"module": "company.poems"}


def test_an_upload_is_the_text_and_the_files_name(apps: Path):
    assert source_body(None, "poem.py", "") == {"upload": "x = 1\n", "name": "poem"}


def test_a_file_outside_of_the_apps_says_what_to_do(apps: Path, tmp_path: Path):
    (tmp_path / "stray.py").write_text("")

    with pytest.raises(BadRequest, match=f"not below {apps}.* --apps-dir {tmp_path}.*--upload"):
        source_body("../stray.py", None, str(apps))


@pytest.mark.parametrize(
    ("target", "reason"),
    [("none.py", "file not found"), ("team/none", "file not found"), ("team/", "file not found")],
)
def test_a_file_that_is_not_there_is_said(apps: Path, target: str, reason: str):
    with pytest.raises(BadRequest, match=reason):
        source_body(target, None, str(apps))


def test_a_file_that_python_cannot_import_is_said(apps: Path):
    (apps / "my-poem.py").write_text("")

    with pytest.raises(BadRequest, match="cannot be imported as 'my-poem'"):
        locate_module("my-poem.py")


def test_a_gateway_that_takes_no_files_is_said(apps: Path):
    with pytest.raises(BadRequest, match="loads no files"):
        source_body("poem.py", None, "")


def test_nothing_at_all_is_said():
    with pytest.raises(BadRequest, match="name a module"):
        source_body(None, None, "")


def test_a_text_that_is_no_text_is_said(apps: Path):
    (apps / "poem.py").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(BadRequest, match=r"poem\.py"):
        source_body(None, "poem.py", "")
