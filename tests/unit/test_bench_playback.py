"""Pauses during playback are attributed to engines, system or machine."""

import pytest

from tests.bench.bus_tap import SentAudio
from tests.bench.machine_watch import MachineWaits
from tests.bench.playback import SAMPLES_PER_SECOND, Player, attribute_underruns, match_answers

SEED, BUFFER, PIECE = 7, 0.1, 0.1  # seconds
WAY = ("client", "gateway 0")
LOOKS = [1 + number / 100 for number in range(100)]
IDLE = MachineWaits(LOOKS, {"client/1": [0.0] * 100, "gateway 0/2": [0.0] * 100})


def make_player(*arrivals: float, turn_ended: float = 0.0) -> Player:
    """Return an answer of pieces of ``PIECE`` seconds with these arrival times."""
    player = Player(BUFFER, turn_ended=turn_ended)
    for at in arrivals:
        player.add_audio(PIECE, at)
    return player


def make_audio(*times: float) -> SentAudio:
    return SentAudio(SEED, 0.0, [(at, round(PIECE * SAMPLES_PER_SECOND)) for at in times], whole=True)


def count_underruns(player: Player, audio: SentAudio, machine: MachineWaits = IDLE) -> tuple[int, int, int]:
    """Return the underruns attributed to the engines, the system and the processors."""
    figures = attribute_underruns([*match_answers([player], SEED, [audio], WAY)], machine)
    assert figures["answers_matched"] == 1
    return figures["of_engines"], figures["of_the_system"], figures["of_processors"]


def test_an_answer_that_comes_in_time_has_no_underrun() -> None:
    assert count_underruns(make_player(1.01, 1.06, 1.11), make_audio(1.0, 1.05, 1.1)) == (0, 0, 0)


def test_a_pause_that_is_at_the_bus_already_is_the_engines() -> None:
    assert count_underruns(make_player(1.01, 1.31, 1.36), make_audio(1.0, 1.3, 1.35)) == (1, 0, 0)


def test_a_pause_of_what_was_at_the_bus_in_time_is_the_systems() -> None:
    assert count_underruns(make_player(1.01, 1.31, 1.36), make_audio(1.0, 1.05, 1.1)) == (0, 1, 0)


def test_a_pause_of_the_engines_that_became_longer_on_the_way_is_of_both() -> None:
    assert count_underruns(make_player(1.01, 1.5, 1.55), make_audio(1.0, 1.2, 1.25)) == (1, 1, 0)


def test_a_pause_for_which_those_on_the_way_had_no_processor_is_not_the_systems() -> None:
    player, audio = make_player(1.01, 1.31, 1.36), make_audio(1.0, 1.05, 1.1)
    late, soon = [min(0.15, max(0.0, at - 1.1)) for at in LOOKS], [min(0.1, max(0.0, at - 1.1)) for at in LOOKS]

    assert count_underruns(player, audio, MachineWaits(LOOKS, {"client/1": late, "gateway 0/2": late})) == (0, 0, 1)
    assert count_underruns(player, audio, MachineWaits(LOOKS, {"client/1": soon, "gateway 0/2": [0.0] * 100})) == (
        0,
        1,
        0,
    )
    assert count_underruns(player, audio, MachineWaits(LOOKS, {"gateway 1/3": [4 * each for each in late]})) == (
        0,
        1,
        0,
    )


def test_what_those_on_the_way_did_is_printed_where_a_pause_is_the_systems(capsys: pytest.CaptureFixture[str]) -> None:
    ran = {"gateway 0/1": [min(0.25, max(0.0, at - 1.05)) for at in LOOKS], "gateway 0/2": [0.0] * 100}
    machine = MachineWaits(LOOKS, {"client/1": [min(0.03, max(0.0, at - 1.1)) for at in LOOKS]}, ran=ran)

    assert count_underruns(make_player(1.01, 1.31, 1.36), make_audio(1.0, 1.05, 1.1), machine) == (0, 1, 0)
    assert count_underruns(make_player(1.01, 1.06, 1.11), make_audio(1.0, 1.05, 1.1), machine) == (0, 0, 0)

    expected_line = (
        "200 ms more than at the bus; a piece took 260: client ran 0, waited 30; gateway 0 ran 250, waited 0\n"
    )
    assert capsys.readouterr().err == expected_line


def test_what_was_made_before_a_turn_ended_is_there_from_then_on() -> None:
    early = make_audio(0.5, 0.9, 1.02)

    assert count_underruns(make_player(1.01, 1.02, 1.12, turn_ended=1.0), early) == (0, 0, 0)


def test_an_answer_of_which_nothing_is_known_at_the_bus_is_counted_apart() -> None:
    figures = attribute_underruns(
        [*match_answers([make_player(1.0, 1.5)], SEED + 1, [make_audio(1.0, 1.1)], WAY)], IDLE
    )

    assert (figures["answers_matched"], figures["underruns_unmatched"]) == (0, 1)
