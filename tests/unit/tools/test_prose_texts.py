"""Texts and names that are collected from pages and Python files."""

import textwrap

from tools.prose_texts import Source, is_generated, page_texts, read_source


def read_python(source: str, file: str = "services/a/b.py") -> Source:
    return read_source(file, textwrap.dedent(source))


def test_code_comments_and_generated_parts_of_a_page_are_not_prose():
    page = "# Title\n\nUse `nobody`.\n\n```sh\nnobody\n```\n<!-- cells: made -->\nnobody\n<!-- end of cells -->\n\n    nobody\n\nEnd.\n"

    texts = [(text.line, text.text) for text in page_texts("a.md", page)]

    assert texts == [(1, "Title"), (3, "Use CODE."), (14, "End.")]


def test_items_and_cells_of_a_page_are_texts_of_their_own():
    page = "Intro\n- first\n  goes on\n- second [link](a.md#b)\n\n| a | b |\n|---|---|\n| cell | `code` |\n"

    texts = [(text.line, text.text, text.is_fragment) for text in page_texts("a.md", page)]

    assert texts == [
        (1, "Intro", False), (2, "first\n  goes on", False), (4, "second link", False),
        (6, "a", True), (6, "b", True), (8, "cell", True), (8, "CODE", True),
    ]  # fmt: skip


def test_a_page_that_a_program_writes_is_generated():
    assert is_generated("# A\n\nThis page is made from `a.py` and `b.py`, by `python -m tests.pages`.")
    assert not is_generated("# A\n\nRun `make pages` after a change.")


def test_docstrings_are_paragraphs_with_their_lines():
    source = read_python('''\
        """Module."""
        def send():
            """Send a message.

            The second paragraph
            has two lines::

                code

            >>> send()
            """
        ''')

    texts = [(text.line, text.text.split()[0], text.is_summary) for text in source.texts]

    assert texts == [(1, "Module.", True), (3, "Send", True), (5, "The", False)]


def test_descriptions_in_a_drawn_tree_are_texts():
    source = read_python('"""Errors.\n\n    Root\n    ├── Rejected   400  nobody reads this\n"""')

    assert [(text.line, text.text) for text in source.texts] == [(1, "Errors."), (4, "nobody reads this")]


def test_messages_are_strings_of_raises_help_and_printed_lines():
    source = read_python("""\
        raise ValueError(f"the value {value} is wrong" if value else "it has no value")
        parser.add_argument("--name", help="the name of it")
        print("three words here", names["not a message"], join("nor this one"))
        field = Field(description="the size " "in bytes")
        value = get("this is not a message")
        """)

    texts = sorted((text.line, text.text) for text in source.texts)

    assert texts == [
        (1, "it has no value"), (1, "the value CODE is wrong"), (2, "the name of it"), (3, "three words here"),
        (4, "the size in bytes"),
    ]  # fmt: skip


def test_messages_in_tests_are_not_read():
    assert read_python('print("three words here")', "tests/unit/test_a.py").texts == []


def test_parameters_and_local_names_are_bindings_but_flags_and_fields_are_not():
    source = read_python("""\
        made = 1
        class Plan:
            kept = 2
            def read(self, asked, closed: bool, *, size=0):
                found = size
                for known in found:
                    found = known
                def inner():
                    told = 1
        """)

    assert sorted(source.participles) == [(4, "asked"), (5, "found"), (6, "known"), (9, "told")]
    assert source.bindings == 5  # asked, size, found, known; told of the inner function
    assert [name for _, name in source.classes] == ["Plan"]
    assert sorted(name for _, name in source.functions) == ["inner", "read"]
