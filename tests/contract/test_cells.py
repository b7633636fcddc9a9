"""The tables of equality and of families match the tests exactly."""

import subprocess
import sys
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus_engines import registry as engines
from tests import cells, families
from tests.cells import Claim

pytest_plugins = "pytester"


#: The pages with tables.
PAGES = (cells.DOCS, families.PAGE)


@pytest.fixture(scope="module")
def written_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """The pages of today with the tables as the command writes them."""
    directory = tmp_path_factory.mktemp("pages")
    copies = [directory / page.name for page in PAGES]
    for page, copy in zip(PAGES, copies, strict=True):
        copy.write_text(page.read_text())
    command = [sys.executable, "-m", "tests.cells", *map(str, copies)]
    process = subprocess.run(command, cwd=cells.ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, process.stderr
    return {page: copy.read_text() for page, copy in zip(PAGES, copies, strict=True)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_what_the_tests_claim(page: Path, written_pages: dict[Path, str]):
    assert page.read_text() == written_pages[page], "run `make cells`"


def test_the_models_page_has_a_row_for_each_family_of_the_table_of_engines():
    table = families.PAGE.read_text().split(families.BEGIN)[1].split(families.END)[0]

    assert table == families.format_table((engine, family, shape) for engine, family, shape, *_ in read_rows()), (
        "run `make cells`"
    )


def read_rows() -> list[list[str]]:
    block = cells.DOCS.read_text().split(cells.BEGIN)[1].split(cells.END)[0]
    lines = [line for line in block.splitlines() if line.startswith("| ")][1:]
    cells_of_lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [
        [engine, family, shape.strip("`"), *rest]
        for engine, family, shapes, *rest in cells_of_lines
        for shape in shapes.split(", ")
    ]


def test_every_engine_and_family_of_the_table_is_one_there_is():
    table_rows = read_rows()

    assert {engine for engine, *_ in table_rows} == {"llama_cpp", "transformers", "vllm"}
    assert all(callable(getattr(engines, engine)) for engine, *_ in table_rows)
    assert {family for _, family, *_ in table_rows} == set(catalog.FAMILIES)


@pytest.mark.parametrize("family", catalog.FAMILIES)
def test_every_usual_path_of_a_family_is_in_the_table(family: str):
    about, deployment = catalog.FAMILIES[family], catalog.DEPLOYMENTS[family]
    # A model that chats and generates images uses one side of a path for each.
    usual = {
        ">".join(option for option in path["options"] if {*deployment["options"][option]["components"]} & {*way})
        for path in deployment["paths"]
        for way in catalog.component_chains(about["components"], about["tasks"])
    }

    assert usual <= {shape for engine, of, shape, *_ in read_rows() if (engine, of) == ("transformers", family)}


def collect_test(pytester: pytest.Pytester, *marks: str, of: str = "") -> tuple[bool, set[Claim]]:
    """Return whether a test is collected, and its claims.

    The test has ``marks`` and the parameters ``of``.
    """
    pytester.makeini("[pytest]\nmarkers = cell\nasyncio_default_fixture_loop_scope = function")
    decorators = "\n".join(f"@pytest.mark.{mark}" for mark in marks)
    file, claims = pytester.makepyfile(f"import pytest\n\n{decorators}\ndef test_it({of}): pass\n"), cells.Claims()
    result = pytester.inline_run("--collect-only", str(file), plugins=[claims])
    return result.ret == pytest.ExitCode.OK, claims.found


CELL, SHAPES = 'cell("sim", "toy", "tokens")', 'parametrize("shape", ["E>L", "EL"])'


def test_the_shape_of_a_claim_is_the_one_that_the_test_runs(pytester: pytest.Pytester):
    good, claims = collect_test(pytester, CELL, SHAPES, of="shape")

    assert good
    assert {claim[:4] for claim in claims} == {("sim", "toy", shape, "tokens") for shape in ("E>L", "EL")}


def test_a_test_of_several_shapes_at_once_says_them(pytester: pytest.Pytester):
    good, claims = collect_test(pytester, 'cell("sim", "toy", "pixels", shape=("TDV", "T>D>V"))')

    assert good
    assert {claim.shape for claim in claims} == {"TDV", "T>D>V"}


@pytest.mark.parametrize(
    ("marks", "of"),
    [
        ([CELL], ""),
        (['cell("sim", "toy", "beauty", shape="EL")'], ""),
        ([CELL, SHAPES, "skip"], "shape"),
        ([CELL, SHAPES, "xfail"], "shape"),
        ([CELL, SHAPES, 'skipif(False, reason="never")'], "shape"),
    ],
    ids=["no shape", "nothing known", "skipped", "may fail", "may be skipped"],
)
def test_what_is_not_run_or_says_too_little_claims_nothing(pytester: pytest.Pytester, marks: list[str], of: str):
    good, claims = collect_test(pytester, *marks, of=of)

    assert not good
    assert claims == set()


def test_claims_of_one_cell_and_cells_with_equal_claims_share_a_row():
    claims = [Claim("sim", "toy", "EL", equal, f"tests/{file}.py") for equal, file in (("rows", "b"), ("tokens", "a"))]
    claims += [claim._replace(shape="E>L") for claim in claims]

    row = cells.format_table(claims).splitlines()[2]

    assert row == "| sim | toy | `EL`, `E>L` | tokens, rows |"
