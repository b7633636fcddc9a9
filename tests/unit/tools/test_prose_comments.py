"""Prose of comments, YAML and scripts."""

from tools.prose_comments import attribute_texts, script_texts, yaml_texts
from tools.prose_texts import read_file


def test_comments_on_attributes_are_paragraphs():
    source = "#: Seconds until a retry,\n#: as ``x`` has it.\nA = 1\n# a remark\n#: Bytes.\nB = 2\n"

    texts = list(attribute_texts("shared/a.py", source))

    assert [(text.line, text.text) for text in texts] == [
        (1, "Seconds until a retry,\nas CODE has it."), (5, "Bytes."),
    ]  # fmt: skip
    assert {text.kind for text in texts} == {"docstring"}


def test_yaml_has_comments_and_the_texts_of_alerts():
    source = "# Ports of the\n# gateway.\nport: 1 # the first\nrules:\n  - annotations:\n      summary: '{{ $labels.model }} is slow'\n"

    texts = list(yaml_texts("deploy/a/b.yml", source))

    assert [(text.line, text.kind, text.text) for text in texts] == [
        (1, "page", "Ports of the\ngateway."), (6, "message", "'CODE is slow'"),
    ]  # fmt: skip


def test_scripts_show_strings_of_several_words():
    source = """// "not a shown text"
h("p", { class: "lead faint" }, "The plan has", `no executor of ${model} yet`);
const rule = "a > b .c { d }";
"""

    texts = [(text.line, text.text) for text in script_texts("services/a.js", source)]

    assert texts == [(2, "The plan has"), (2, "no executor of CODE yet")]


def test_files_are_read_by_their_kind(tmp_path):
    for name, content in (
        ("a.py", "#: Whoever asks.\nA = 1\n"),
        ("b.js", 'say("nobody is here")'),
        ("c.yaml", "# A port.\n"),
    ):
        (tmp_path / name).write_text(content)

    texts = [read_file(tmp_path, name).texts[0].text for name in ("a.py", "b.js", "c.yaml")]

    assert texts == ["Whoever asks.", "nobody is here", "A port."]
