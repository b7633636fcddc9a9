"""``omnibus up``: the meaning of its flags, and rejected combinations."""

import json
from pathlib import Path

import pytest

from omnibus.cli.main import _build_parser, main
from omnibus.cli.up import load_declarations
from omnibus.errors import BadRequest


def test_by_default_one_gateway_listens_on_port_8000_and_no_app_is_registered():
    options = _build_parser().parse_args(["up"])

    assert (options.port, options.gateways, options.app, options.no_models) == (8000, 1, [], False)


def test_several_apps_may_be_named():
    assert _build_parser().parse_args(["up", "--app", "poem.py", "--app", "pkg.chat"]).app == ["poem.py", "pkg.chat"]


async def test_without_models_nothing_is_declared():
    assert json.loads(await load_declarations(_build_parser().parse_args(["up", "--no-models"]))) == {"models": {}}


async def test_a_declarations_file_is_taken_as_it_is(tmp_path: Path):
    (tmp_path / "models.json").write_text("anything")

    assert (
        await load_declarations(_build_parser().parse_args(["up", "--models", str(tmp_path / "models.json")]))
        == "anything"
    )


async def test_profiles_are_found_beside_the_declarations_that_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    one, other = {"planned": {"profile": "near/q.json"}}, {"planned": {"profile": "/far/q.json"}}
    declarations = {"gpus": {}, "models": {"one": one, "other": other, "kept": {"planned": {}}, "static": {}}}
    (tmp_path / "models.json").write_text(json.dumps(declarations))

    document = json.loads(await load_declarations(_build_parser().parse_args(["up", "--models", "models.json"])))

    assert document["models"] == {
        "one": {"planned": {"profile": str(tmp_path / "near/q.json")}},
        "other": other,
        "kept": {"planned": {}},
        "static": {},
    }


@pytest.mark.parametrize(
    ("checkpoint", "expected_path"),
    [
        ("./weights", "{0}/weights"),
        ("../weights", "{0.parent}/weights"),
        ("/weights", "/weights"),
        ("Qwen/Qwen2.5-Omni-7B", "Qwen/Qwen2.5-Omni-7B"),
    ],
)
async def test_a_checkpoint_that_begins_with_a_dot_is_beside_the_declarations(
    tmp_path: Path, checkpoint: str, expected_path: str
):
    (tmp_path / "models.json").write_text(json.dumps({"models": {"one": {"checkpoint": checkpoint}}}))

    document = json.loads(
        await load_declarations(_build_parser().parse_args(["up", "--models", str(tmp_path / "models.json")]))
    )

    assert document["models"]["one"]["checkpoint"] == expected_path.format(tmp_path)


@pytest.mark.parametrize("text", ["[]", '{"models": []}', '{"models": {"m": {"planned": 3}}}', '{"models": {"m": 1}}'])
async def test_declarations_that_are_no_good_are_left_to_the_planner(tmp_path: Path, text: str):
    (tmp_path / "models.json").write_text(text)

    assert (
        await load_declarations(_build_parser().parse_args(["up", "--models", str(tmp_path / "models.json")])) == text
    )


async def test_a_declarations_file_that_is_not_there_is_named():
    with pytest.raises(BadRequest, match="--models /none"):
        await load_declarations(_build_parser().parse_args(["up", "--models", "/none"]))


@pytest.mark.parametrize(
    "flags", [["--models", "m.json", "--no-models"], ["--gateways", "two"], ["--gateways"]], ids=" ".join
)
def test_wrong_flags_are_explained_with_exit_code_2(flags: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["up", *flags])

    assert caught.value.code == 2
    assert "(`omnibus up --help`)" in capsys.readouterr().err


def test_fewer_than_one_gateway_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]):
    assert main(["up", "--no-models", "--gateways", "0"]) == 78
    assert "one at least must run" in capsys.readouterr().err


async def test_a_checkpoint_below_the_current_directory_is_a_path_and_another_is_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights" / "mine").mkdir(parents=True)
    models = {name: {"family": "qwen3", "checkpoint": name} for name in ("weights/mine", "Qwen/Qwen3-0.6B", "/none")}
    (tmp_path / "models.json").write_text(json.dumps({"models": models}))

    document = json.loads(await load_declarations(_build_parser().parse_args(["up", "--models", "models.json"])))

    assert {name: model["checkpoint"] for name, model in document["models"].items()} == {
        "weights/mine": str(tmp_path / "weights" / "mine"),
        "Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B",
        "/none": "/none",
    }
