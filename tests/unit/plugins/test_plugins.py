"""Families and apps of other distributions: found by entry points, validated, and named in errors."""

import subprocess
import sys

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.executor.python_task import engine
from omnibus.families import catalog, plugins
from omnibus.plan import ModelPlan
from omnibus_planner.declared import declarations_file
from tests.unit.plugins.dists import TOY, Install, install_toy


def make_plan(declaration: dict[str, object]) -> ModelPlan:
    return declarations_file.build_static_plans(
        msgspec.convert({"m": declaration}, dict[str, declarations_file.DeclaredModel])
    )["m"]


def install_family(install: Install, module: str, text: str) -> None:
    """Install a distribution ``dist-<module>`` whose family ``odd`` is ``FAMILY`` of ``module``."""
    install(f"dist-{module}", {plugins.FAMILIES: {"odd": f"{module}:FAMILY"}}, **{module: text})


# Families


def test_a_family_of_a_plugin_is_one_of_the_catalog(install: Install):
    install_toy(install, "toy_found")

    family = catalog.find_family("toy")

    assert plugins.family_names() == ("toy",)
    assert (family["composite"], family["engine"]) == ("toy_found:chat", "toy_found:engine")
    assert family["voices"] == ()
    assert family.keys() == catalog.find_family("qwen2_5_vl").keys()


def test_a_model_of_a_plugins_family_needs_no_more_than_its_checkpoint(install: Install):
    install_toy(install, "toy_declared")

    model_plan = make_plan({"family": "toy", "checkpoint": "/toy"})

    assert model_plan.components == ("eye", "writer")
    assert model_plan.tasks == {"eye": "encode-m-eye", "writer": "think-m-writer"}
    assert {kind: [(path.name, path.rate) for path in paths] for kind, paths in model_plan.types.items()} == {
        "writer": [("W", 3), ("EW", 1)],
        "eye+writer": [("E>W", 3), ("EW", 1)],
    }


def test_the_familys_engine_runs_what_names_no_other(install: Install):
    install_toy(install, "toy_engine")
    options = {
        "E": {"components": ["eye"], "service": "encoder", "engine": "elsewhere:engine"},
        "W": {"components": ["writer"], "service": "llm"},
    }

    model_plan = make_plan(
        {"family": "toy", "checkpoint": "/toy", "options": options, "paths": [{"options": ["E", "W"]}]}
    )

    assert {name: option.engine for name, option in model_plan.options.items()} == {
        "E": "elsewhere:engine", "W": "toy_engine:engine",
    }  # fmt: skip


def test_the_composite_task_of_a_plugin_is_made_from_name_and_plan(install: Install):
    install_toy(install, "toy_composite")
    model_plan = make_plan({"family": "toy", "checkpoint": "/toy"})

    chat = plugins.import_object(catalog.find_family("toy")["composite"])("m", model_plan)

    assert chat.writer.name == model_plan.tasks["writer"]


def test_a_family_that_nobody_brings_is_refused_with_those_there_are(install: Install):
    install_toy(install, "toy_known")

    with pytest.raises(
        BadRequest,
        match=rf"no model family 'tox'; there is {', '.join([*sorted(catalog.FAMILIES), 'toy'])}; did you mean toy\?$",
    ):
        catalog.find_family("tox")


def test_a_plugin_does_not_take_the_place_of_a_built_in_family(install: Install):
    install_toy(install, "toy_vl", family="qwen2_5_vl")
    install_toy(install, "toy_python", family="python")

    assert catalog.find_family("qwen2_5_vl")["components"] == ["vision", "thinker"]
    with pytest.raises(BadRequest, match="no model family 'python'"):
        catalog.find_family("python")


def test_a_family_is_loaded_when_it_is_asked_for(install: Install):
    install_family(install, "lazy", "raise RuntimeError('imported')")

    assert "odd" in plugins.family_names()
    assert catalog.find_family("qwen2_5_vl")
    assert "lazy" not in sys.modules


FAULTS = {
    "no module": ("", "cannot be loaded: AttributeError"),
    "broken": ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
    "missing import": ("import nothing_of_that_name", "cannot be loaded: ModuleNotFoundError: .*nothing_of_that_name"),
    "no dict": ("FAMILY = 7", "is not a family: Expected `object`, got `int`"),
    "field unknown": ("FAMILY = {'components': ['a'], 'tasks': {'a': 'do'}, 'colour': 1}", "is not a family: .*colour"),
    "field wrong": ("FAMILY = {'components': 'a', 'tasks': {}}", r"is not a family: .*\$.components"),
    "field missing": ("FAMILY = {'components': ['a']}", "is not a family: .*tasks"),
    "empty": ("FAMILY = {'components': [], 'tasks': {}}", "has no component"),
    "task missing": ("FAMILY = {'components': ['a', 'b'], 'tasks': {'a': 'do'}}", r"no unit task for \['b'\]"),
    "task of nothing": ("FAMILY = {'components': ['a'], 'tasks': {'a': 'do', 'c': 'do'}}", r"unknown components \['c'\]"),
    "encoder of nothing": (
        "FAMILY = {'components': ['a'], 'tasks': {'a': 'do'}, 'encoders': {'image': 'eye'}}", r"unknown components \['eye'\]",
    ),
    "engine": ("FAMILY = {'components': ['a'], 'tasks': {'a': 'do'}, 'engine': 'odd'}", "has engine 'odd'"),
    "composite": ("FAMILY = {'components': ['a'], 'tasks': {'a': 'do'}, 'composite': ':x'}", "has composite ':x'"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_plugin_at_fault_is_named_with_its_distribution(
    install: Install, text: str, fault: str, request: pytest.FixtureRequest
):
    module = "odd_" + request.node.callspec.id.replace(" ", "_")
    install_family(install, module, text)

    with pytest.raises(BadRequest, match=rf"'odd' of omnibus.families \(dist-{module}: {module}:FAMILY\) .*{fault}"):
        catalog.find_family("odd")


def test_a_deployment_that_makes_no_sense_is_the_familys_fault(install: Install):
    text = "FAMILY = {'components': ['a'], 'tasks': {'a': 'do'}, 'options': {'A': {'components': ['a']}}, 'paths': [{'options': ['A']}]}"
    install_family(install, "odd_options", text)

    with pytest.raises(BadRequest, match="the family odd has an invalid deployment: .*service"):
        make_plan({"family": "odd", "checkpoint": "/m"})


def test_two_plugins_of_one_name_are_both_named(install: Install):
    for module in ("first_toy", "second_toy"):
        install_toy(install, module)

    with pytest.raises(
        BadRequest, match="'toy' .*brought by dist-first_toy and dist-second_toy: uninstall all but one"
    ):
        catalog.find_family("toy")


def test_a_distribution_that_is_found_twice_on_the_path_is_one(install: Install, monkeypatch: pytest.MonkeyPatch):
    place = install("dist-twice", {plugins.FAMILIES: {"toy": "toy_twice:FAMILY"}}, toy_twice=TOY)
    monkeypatch.syspath_prepend(f"{place}/.")

    assert plugins.family_names() == ("toy",)
    assert catalog.find_family("toy")["encoders"] == {"image": "eye"}


# Apps


def test_an_app_is_known_by_name_and_not_imported(install: Install):
    install("dist-poems", {plugins.APPS: {"poem": "poems_app"}}, poems_app="raise RuntimeError('imported')")

    assert plugins.app_names() == ("poem",)
    assert plugins.find_app_module("poem") == "poems_app"
    assert "poems_app" not in sys.modules


def test_an_app_may_be_the_attribute_of_a_module(install: Install):
    source = "import string\nAPP = 'stories.app'\nMODULE = string\nOTHER = 7"
    points = {"story": "stories:APP", "letters": "stories:MODULE", "seven": "stories:OTHER", "none": "stories:NONE"}
    install("dist-stories", {plugins.APPS: points}, stories=source)

    assert plugins.find_app_module("story") == "stories.app"
    assert plugins.find_app_module("letters") == "string"
    with pytest.raises(BadRequest, match=r"'seven' of omnibus.apps \(dist-stories: .* is not an app: .* not int"):
        plugins.find_app_module("seven")
    with pytest.raises(BadRequest, match=r"'none' of omnibus.apps \(dist-stories: .* cannot be loaded"):
        plugins.find_app_module("none")


def test_an_app_that_nobody_brings_is_refused_with_those_there_are(install: Install):
    with pytest.raises(BadRequest, match="no plugin brings the app 'poem'; there is none"):
        plugins.find_app_module("poem")
    install("dist-more", {plugins.APPS: {"b": "b", "a": "a"}})
    with pytest.raises(BadRequest, match="there is a, b"):
        plugins.find_app_module("poem")


# Paths to objects


def test_an_object_is_found_by_module_and_name():
    assert plugins.import_object("omnibus.families.plugins:import_object") is plugins.import_object


def test_an_engine_is_found_by_the_former_name_that_stored_plans_give():
    assert plugins.import_object("omnibus.executor.own:engine") is engine


@pytest.mark.parametrize(
    "path", ["", "omnibus", "omnibus:", ":named", "omnibus.nothing:x", "omnibus.families.plugins:nothing"]
)
def test_a_path_that_leads_nowhere_is_refused_with_what_names_it(path: str):
    with pytest.raises(BadRequest, match=f"^OMNIBUS_X='{path}' must name module:function"):
        plugins.import_object(path, "OMNIBUS_X")


def test_looking_for_plugins_loads_nothing_heavy():
    code = "from omnibus.families import plugins; plugins.family_names(), plugins.app_names(); import sys; print(*sys.modules)"

    module_names = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).split()

    assert {"pydantic", "nats", "redis", "torch", "numpy"}.isdisjoint(module_names)
