"""Rules of plain English: each with texts that break it, and texts that come close."""

import pytest

from tools.prose_rules import Text, bad_summaries, idioms, is_participle, long_sentences


def broken_rules(text: str, kind: str = "page") -> list[str]:
    return [hit.rule for hit in idioms(Text("a.md", 1, kind, text))]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("named subject", "The name is taken, or somebody was faster."),
        ("named subject", "What fails later is an event."),
        ("named subject", "The plan, and what\nruns, is shown."),
        ("address the reader", "One may set a limit."),
        ("address the reader", "It is printed to clients who ask."),
        ("verbs of the field", "The client is told the status."),
        ("verbs of the field", "The record says why."),
        ("verbs of the field", "The stream goes on."),
        ("verbs of the field", "A client that leaves stops its work."),
        ("verbs of the field", "The slot is given back."),
        ("verbs of the field", "The two are kept apart."),
        ("image, audio, video", "Send a picture."),
        ("image, audio, video", "Films and text."),
        ("image, audio, video", "The sound is decoded."),
        ("X is not Y", "A plugin is no service."),
        ("place for time", "The stage runs behind the last token."),
        ("place for time", "Beside the log, it writes a record."),
        ("place for time", "Where there is no GPU, the CPU is used."),
        ("place for time", "It tries again and again."),
        ("place for time", "It restarts by itself."),
        ("place for time", "It has a page of its own."),
        ("must, cannot, unknown", "The file is to be removed."),
    ],
)
def test_an_idiom_is_found(rule: str, text: str):
    assert broken_rules(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "What is a plan? See below.",
        "It depends on what the plan contains.",
        "The gateway returns an error that names the parameter.",
        "You can set a limit.",
        "The client sends the request again.",
        "That sounds like a defect, and the proof is soundness.",
        "There is no default.",
        "The limit is no longer used, and is no more than 3.",
        "Run it behind a proxy, behind the load balancer or behind your TLS proxy.",
        "The first step is to install it; the default is to wait.",
        "This is to the left.",
        "The whole is a whatnot.",
    ],
)
def test_plain_english_is_not_an_idiom(text: str):
    assert broken_rules(text) == []


@pytest.mark.parametrize("text", ["no such model CODE", "the limit may not be 0", "CODE has to be a number"])
def test_a_message_uses_the_words_of_errors(text: str):
    assert broken_rules(text, "message") == ["must, cannot, unknown"]
    assert broken_rules(text, "page") == []


def test_a_hit_has_the_line_of_the_match():
    [hit] = idioms(Text("a.md", 10, "page", "The first line.\nThe second\nline says so to nobody."))

    assert (hit.line, hit.text) == (12, "nobody")


@pytest.mark.parametrize(
    "text", ["The " + "very " * 25 + "end.", "It has parts: one; another.", "Short one. " + "Long " * 26 + "here."]
)
def test_a_sentence_has_one_idea(text: str):
    assert len(long_sentences(Text("a.md", 1, "page", text))) == 1


@pytest.mark.parametrize(
    "text", ["The " + "very " * 23 + "end.", "It has parts: one, another.", "At 10:20, a:b;c runs."]
)
def test_a_sentence_of_25_words_with_one_colon_is_fine(text: str):
    assert long_sentences(Text("a.md", 1, "page", text)) == []


def test_cells_and_headings_are_no_sentences():
    assert long_sentences(Text("a.md", 1, "page", "cell " * 30, is_fragment=True)) == []


@pytest.mark.parametrize(
    "text", ["Whether the plan fits.", "Return the plan that needs the fewest GPUs of all that are left in it."]
)
def test_a_docstring_opens_with_a_short_line(text: str):
    assert len(bad_summaries(Text("a.py", 1, "docstring", text, is_summary=True))) == 1
    assert bad_summaries(Text("a.py", 1, "docstring", text)) == []


@pytest.mark.parametrize("text", ["Return the plan.", "Whetstones of a plan.", "Return it. " + "More " * 20])
def test_a_docstring_that_opens_well_is_left_alone(text: str):
    assert bad_summaries(Text("a.py", 1, "docstring", text, is_summary=True)) == []


@pytest.mark.parametrize("name", ["found", "wanted", "asked", "_known", "what", "theirs"])
def test_a_participle_alone_is_no_name(name: str):
    assert is_participle(name)


@pytest.mark.parametrize("name", ["seed", "speed", "found_keys", "request", "embedded_by", "ed", "NEEDED", "left"])
def test_a_noun_is_a_name(name: str):
    assert not is_participle(name)
