"""Every page with commands and blocks is run by night, and the table of what cannot run has no stale entries."""

from pathlib import Path

from tests.documented.blocks import JSON, PAGES_WITH_STEPS, PYTHON, SHELL, Step, read_steps, split_commands
from tests.documented.data import read_data
from tests.documented.table import SKIPPED, skipped_reason, stale_entries
from tests.e2e.documented.test_pages import RUN


def test_every_page_with_blocks_runs_or_has_a_reason_for_each_step():
    skipped = [page for page in PAGES_WITH_STEPS if page not in RUN]

    assert len(PAGES_WITH_STEPS) > 15
    assert [step for page in skipped for step in read_steps(page) if not skipped_reason(step)] == []
    assert all(SKIPPED.values())


def test_every_entry_of_the_tables_belongs_to_a_step_of_its_page():
    assert stale_entries() == []


def test_json_of_pages_is_read_by_the_code_that_uses_it(tmp_path: Path):
    blocks = [step for page in RUN for step in read_steps(page) if step.language == JSON and not skipped_reason(step)]

    assert len(blocks) > 10
    for step in blocks:
        read_data(step.text, tmp_path)


def test_a_shell_block_is_split_into_commands_that_a_shell_reads_whole():
    text = "omnibus up  # first\n\ncurl x \\\n  -d '{\n}'\nfor a in b; do\n  echo $a\ndone\ncat <<END\nx\nEND\n"

    commands = split_commands(text)

    assert [command.split()[0] for command in commands] == ["omnibus", "curl", "for", "cat"]
    assert "\n".join(commands) == text.replace("\n\n", "\n").strip()


def test_blocks_are_found_with_and_without_their_language():
    languages = {step.language for page in RUN for step in read_steps(page)}

    assert {SHELL, PYTHON, JSON} <= languages
    assert Step("debugging", SHELL, "omnibus fork $ID 1 --seed 7") in read_steps("debugging")
