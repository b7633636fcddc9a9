"""Output for programs, in JSON, and tables with distinguishable rows."""

import argparse
import json
import math
from collections.abc import Iterator

import msgspec
import pytest

from omnibus.cli import main
from omnibus.cli.format import plan as plan_format
from omnibus.cli.format.tables import (
    column_lines,
    field_lines,
    screen_width,
    shorten_names,
    table_lines,
    text_columns,
    text_lines,
)
from omnibus.cli.format.top import top_lines
from omnibus.cli.main import _build_parser
from omnibus.cli.output import print_json
from omnibus.cluster.monitor.snapshot import SystemState
from omnibus.families import catalog
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus.reference.sizing import MIB, USED_SHARE, read_measurements
from omnibus.store import PlanHistoryEntry
from tests.unit.cli.watched import MonitorClock

#: Commands that print no facts: a demonstration, and a script for a shell.
WITHOUT_JSON = {"omnibus demo", "omnibus completion"}
SCREEN = 80


def leaf_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for command in action.choices.values():
            yield from leaf_commands(command)
    if not below:
        yield parser


def test_every_command_that_prints_facts_prints_them_as_json_too():
    without = {each.prog for each in leaf_commands(_build_parser()) if "--json" not in each._option_string_actions}

    assert without == WITHOUT_JSON


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["show", "a-0-1", "--nats", "nats://127.0.0.1:1", "--json"], "bus_unavailable", 1),
        (["plan", "history", "--store", "redis://127.0.0.1:1", "--json"], "store_unavailable", 1),
        (["models", "show", "/none", "--json"], "not_found", 1),
        (["models", "list", "--jsn", "--json"], "usage", 2),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_an_error_of_a_command_for_programs_is_json_too(
    arguments: list[str], code: str, exit_code: int, capsys: pytest.CaptureFixture[str]
):
    try:
        exit_status = main(arguments)
    except SystemExit as error:
        exit_status = int(error.code or 0)

    output = capsys.readouterr()
    assert (output.out, exit_status) == ("", exit_code)
    problem = json.loads(output.err)["error"]
    assert problem["code"] == code
    assert problem["message"]


def test_json_is_one_line_in_utf_8_without_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]):
    print_json({"name": "Größe", "rate": float("inf")})

    assert capsys.readouterr().out == '{"name":"Größe","rate":null}\n'


def test_names_alone_are_one_a_line(capsys: pytest.CaptureFixture[str]):
    assert main(["settings", "up", "frozen", "-q"]) == 0

    assert capsys.readouterr().out == "OMNIBUS_UP_FROZEN\n"


def test_a_workload_is_sized_from_what_was_measured(capsys: pytest.CaptureFixture[str]):
    measurements = read_measurements()
    chat = measurements.kinds["chat-image"]
    assert main(["size", "chat-image=100", "--seconds", "3", "--keep-days", "1", "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)

    assert sizes["cores"]["gateway"] == pytest.approx(chat.cpu_ms["gateway"] / 10)
    assert sizes["arena_mib"] == pytest.approx(chat.arena_bytes * 300 / USED_SHARE / MIB)
    assert sizes["disk_mib"] == pytest.approx(chat.disk_bytes * 100 * 86400 / MIB)
    assert sizes["bus_mib_s"] == pytest.approx(chat.bus_bytes * 100 / MIB)
    assert sizes["gateways"] == math.ceil(sizes["cores"]["gateway"] / USED_SHARE)
    assert main(["size"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:8]} == measurements.kinds.keys()


@pytest.mark.parametrize(
    ("workload", "message"),
    [("chat-imag=1", "did you mean chat-image?"), ("chat", "must be KIND=REQ/S"), ("chat=-1", "must be KIND=REQ/S")],
)
def test_a_workload_that_is_none_is_refused(workload: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["size", workload]) == 1

    assert message in capsys.readouterr().err


# Tables


def test_names_are_cut_only_as_far_as_they_still_differ():
    models = ["qwen2.5-omni-tiny/E", "qwen2.5-omni-tiny/EV", "qwen2.5-omni-wide/E", "qwen2.5-omni-wide/EV"]

    for width in range(1, 30):
        short = shorten_names(models, width)
        assert len(set(short)) == len(models)
        assert [name.rpartition("/")[2] for name in short] == ["E", "EV", "E", "EV"]
    assert shorten_names(["qwen2.5-omni-tiny/EV", "qwen2.5-vl-tiny/L"], 12) == ["qwen2.…ny/EV", "qwen2.…iny/L"]
    assert shorten_names(["vision+thinker"], 9) == ["visi+thin"]


def test_words_at_the_end_make_room_for_names():
    rows = [[f"{'m' * 30}/{option}", "1", "vision, audio, thinker, talker, vocoder"] for option in "ab"]

    lines = list(column_lines(["EXECUTORS", "up", "runs"], rows, 60, words=1))

    assert max(map(len, lines)) <= 60
    assert all(row[0] in line for row, line in zip(rows, lines[1:], strict=True))


@pytest.fixture
def default_plan() -> Plan:
    """The default deployment, with model names that differ only at their ends."""
    models = {}
    for name in ("qwen2.5-omni-world", "qwen2.5-omni-tiny", "qwen2.5-omni-tiny-wide"):
        family = catalog.find_family("qwen2_5_omni")
        options = {key: msgspec.convert({"replicas": 1, **each}, DeploymentOption) for key, each in OPTIONS.items()}
        paths = (Path("E>Th>Ta>V", {"vision": "E", "thinker": "Th", "talker": "Ta", "vocoder": "V"}, 1.0),)
        models[name] = ModelPlan(
            "qwen2_5_omni", "/m", tuple(family["components"]), {}, options, {"vision+thinker+talker+vocoder": paths}
        )
    return Plan(7, 0, 0.0, models, reason="declared")


OPTIONS = {
    "E": {"components": ("vision", "audio"), "service": "encoder"},
    "Th": {"components": ("thinker",), "service": "llm"},
    "Ta": {"components": ("talker",), "service": "llm"},
    "V": {"components": ("vocoder",), "service": "generator"},
}


def test_rows_of_top_differ_at_80_columns(default_plan: Plan):
    system_state = SystemState(MonitorClock())
    system_state.plan = default_plan

    lines = list(top_lines(system_state, (), SCREEN))

    at = next(index for index, line in enumerate(lines) if line.startswith("EXECUTORS"))
    row_names = [line.split()[0] for line in lines[at + 1 :] if line]
    assert len(set(row_names)) == len(row_names) == 3 * len(OPTIONS)
    assert max(map(len, lines)) <= SCREEN


def test_rows_of_other_tables_are_whole_on_any_screen(default_plan: Plan):
    options = [f"{name}/{option}" for name in default_plan.models for option in OPTIONS]
    plan_rows = "\n".join(plan_format.plan_lines(default_plan, None)).splitlines()
    history = list(plan_format.history_lines([PlanHistoryEntry(7, default_plan, "")], 7, 0))
    runs = list(table_lines(["RUN", "URL"], [["8000", "http://127.0.0.1:8000"], ["a" * SCREEN, "http://[::1]:1"]]))

    assert [line.split()[0] for line in plan_rows if "/" in line.split(" ")[0]] == options
    assert all(name in history[1] for name in default_plan.models)
    assert [line.split()[0] for line in runs] == ["RUN", "8000", "a" * SCREEN]


def test_cells_of_a_wide_table_take_several_lines():
    rows = [["apps/" + "-".join(["component"] * 6), ", ".join(["recognize"] * 5), "1"], ["b", "c", "22"]]

    lines = list(table_lines(["OPTION", "RUNS", "GPUS"], rows, 50))

    assert max(map(len, lines)) <= 50
    text = "".join(line[: lines[0].index("RUNS")].rstrip() for line in lines[1:-1])
    assert text == rows[0][0]
    assert lines[-1].split() == rows[1]
    assert list(table_lines(["A", "B"], [["1", "2"]])) == list(table_lines(["A", "B"], [["1", "2"]]))


def test_a_narrow_screen_leaves_out_spare_columns_and_at_last_lists_fields():
    head, rows = ["TASK", "KIND", "EXECUTORS"], [["talk-" + "m" * 20, "talk", "one-0 ok, two-0 ok"], ["b", "c", "d"]]

    assert list(table_lines(head, rows, 0)) == list(table_lines(head, rows, 200))
    assert [line.split()[0] for line in table_lines(head, rows, 45)] == ["TASK", rows[0][0], "two-0", "b"]
    assert next(table_lines(head, rows, 40, spare=["KIND"])).split() == ["TASK", "EXECUTORS"]
    assert list(table_lines(head, rows, 32)) == [
        "TASK       talk-",
        "           mmmmmmmmmmmmmmmmmmmm",
        "KIND       talk",
        "EXECUTORS  one-0 ok, two-0 ok",
        "",
        "TASK       b",
        "KIND       c",
        "EXECUTORS  d",
    ]


@pytest.mark.parametrize("width", range(24, 90, 5))
@pytest.mark.parametrize("word", ["image", "m" * 50, "a-long-name_of/parts+of>it", "图像里有什么"])
def test_any_text_fits_any_screen(width: int, word: str):
    rows = [[word, f"{word} {word}", word], ["1", "", "3"]]
    text = f"  {word} {word * 3}, {word}"

    lines = [*table_lines(["A", "B", "C"], rows, width), *text_lines(text, 8, width), *field_lines({"a": text}, width)]

    assert max(map(text_columns, lines)) <= width
    assert "".join("".join(text_lines(text, 8, width)).split()) == "".join(text.split())


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert screen_width() == 0
    monkeypatch.setenv("COLUMNS", "72")
    assert screen_width() == 72
