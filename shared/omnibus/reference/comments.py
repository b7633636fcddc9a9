"""Comments above the fields of a class, in the format of pages."""

import ast
import inspect


def field_comments(owner: type) -> dict[str, str]:
    """Return the ``#:`` comment above each field of ``owner``. Fields of its base classes are included; the text is ""
    without a comment."""
    comments: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        # A generic with parameters is created at run time and derives from the one without.
        if base.__module__.split(".")[0] == "omnibus" and "[" not in base.__name__:
            comments |= _own_comments(base)
    return comments


def _own_comments(owner: type) -> dict[str, str]:
    source = inspect.getsource(owner)
    lines, comments = source.splitlines(), {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            end = begin = node.lineno - 1
            while lines[begin - 1].lstrip().startswith("#:"):
                begin -= 1
            comments[node.target.id] = " ".join(line.strip().removeprefix("#:").strip() for line in lines[begin:end])
    return comments


def to_markdown(text: str) -> str:
    """Convert a docstring or comment to Markdown for a table."""
    return text.replace("``", "`").replace("|", "\\|")
