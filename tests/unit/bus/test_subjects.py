"""Subjects are built and parsed in one place, by the bus contract."""

import pytest

from omnibus.bus import subjects
from tests.memory_bus import subject_matches


def test_subjects_are_those_of_the_contract():
    assert subjects.task_subject("think-m-thinker") == "omnibus.task.think-m-thinker"
    assert subjects.task_subject("think-m-thinker", "l-0") == "omnibus.task.think-m-thinker.l-0"
    assert subjects.edge_subject("l-0") == "omnibus.edge.l-0"
    assert subjects.reply_subject("g") == "omnibus.reply.g"
    assert subjects.end_subject("g-0-1") == "omnibus.end.g-0-1"
    assert subjects.record_subject("chat", "g-0-1") == "omnibus.inv.chat.g-0-1"
    assert subjects.event_subject("gone") == "omnibus.event.gone"
    assert (subjects.MEDIA, subjects.media_subject("g")) == ("omnibus.media", "omnibus.media.g")
    assert (subjects.REPLAY, subjects.INVOCATIONS.name) == ("omnibus.replay", "OMNIBUS_INVOCATIONS")


def test_a_refused_dispatch_is_told_from_its_reply_subject():
    subject = subjects.refused_subject("g", "g-0-1", 2, "qwen2_5-vl-tiny-L-0")

    assert subjects.parse_refused_subject(subject) == ("g-0-1", 2, "qwen2_5-vl-tiny-L-0")
    assert subject_matches(f"{subjects.reply_subject('g')}.>", subject)
    assert not subject_matches(subjects.reply_subject("g"), subject)


@pytest.mark.parametrize("text", ["a.b", "a b", "*", ">", "a\r\nPUB x 0", "", "é", "a/b"])
def test_any_text_becomes_one_token(text: str):
    token = subjects.subject_token(text)

    assert token
    assert all(character.isascii() and (character.isalnum() or character in "_-") for character in token)


def test_a_safe_text_is_its_own_token():
    assert subjects.subject_token("think-qwen2_5-VL") == "think-qwen2_5-VL"


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b", "a.c", False),
    ],
)
def test_wildcards_follow_the_rules_of_nats(pattern: str, subject: str, fits: bool):
    assert subject_matches(pattern, subject) is fits


def test_records_and_ends_are_caught_by_their_wildcards():
    assert subject_matches(subjects.RECORDS, subjects.record_subject("my.app", "g-0-1"))
    assert subject_matches("omnibus.end.*", subjects.end_subject("g-0-1"))
