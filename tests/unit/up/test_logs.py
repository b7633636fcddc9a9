"""Log lines carry their process's name, in colour only on a terminal."""

import asyncio
import io
import re
from functools import partial

from omnibus.process.logs import Log
from omnibus.process.process import copy_lines


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


async def copy_data(log: Log, name: str, data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    await copy_lines(reader, partial(log.write_line, name))


async def test_each_line_has_the_padded_name_in_front():
    stream = io.StringIO()
    log = Log(stream, {})
    log.register("gateway")

    await copy_data(log, "nats", b"one\r\ntwo\nunfinished")

    assert stream.getvalue() == "nats    | one\nnats    | two\nnats    | unfinished\n"


def test_a_terminal_gets_a_colour_per_name():
    stream = TerminalText()
    log = Log(stream, {})

    log.write_line("a", "x")
    log.write_line("b", "y")

    assert len(set(re.findall(r"\x1b\[(\d\d)m", stream.getvalue()))) == 2


def test_no_color_is_honoured():
    stream = TerminalText()

    Log(stream, {"NO_COLOR": "1"}).write_line("a", "x")

    assert stream.getvalue() == "a | x\n"


async def test_bytes_that_are_not_text_do_not_stop_the_log():
    stream = io.StringIO()

    await copy_data(Log(stream, {}), "a", b"\xff\xfe\nnext\n")

    assert stream.getvalue().endswith("a | next\n")


async def test_a_line_without_end_is_cut_and_nothing_is_lost():
    stream = io.StringIO()
    size = 300_000

    await copy_data(Log(stream, {}), "a", b"x" * size)

    lines = stream.getvalue().splitlines()
    assert len(lines) > 1
    assert sum(line.count("x") for line in lines) == size


def test_the_tail_holds_the_last_lines_only():
    log = Log(io.StringIO(), {})

    for number in range(100):
        log.write_line("a", f"line {number}")

    assert "line 99" in log.tail("a")
    assert "line 50" not in log.tail("a")
    assert log.tail("silent") == ""


def test_what_a_service_logs_again_and_again_is_written_once_with_its_count():
    stream = io.StringIO()
    log = Log(stream, {})

    for second in range(4):
        log.write_line("a", f"2026-11-24 10:00:0{second},000 WARNING nats: no servers")
    log.write_line("a", "printed")
    log.write_line("a", "printed")

    assert stream.getvalue().splitlines() == [
        "a | 2026-11-24 10:00:00,000 WARNING nats: no servers",
        "a | (the last line 3 more times)",
        "a | printed",
        "a | printed",
    ]


def test_the_last_message_is_without_what_a_logger_puts_before_it():
    log = Log(io.StringIO(), {})

    log.write_line("a", "2026-11-24 10:00:00,000 ERROR omnibus.x: gateway cannot run: no")

    assert log.last_message("a") == "gateway cannot run: no"
    assert log.last_message("silent") == ""
