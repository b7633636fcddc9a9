"""Saved inputs of each parser: ``corpus/<parser>/`` holds small files that once did harm, or nearly.

A property that fails writes the smallest input that it saw to ``corpus/<parser>/failing``. Give the file a name that
says what is wrong with it and commit it together with the repair: from then on it is tried in each run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import example
from hypothesis.errors import StopTest, UnsatisfiedAssumption

CORPUS = Path(__file__).parent / "corpus"


def saved(parser: str) -> list[bytes]:
    """Files of a parser's corpus, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / parser).glob("*"))]


def tries(parser: str, **fixed: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that tries each saved input of ``parser`` as the argument ``data``, beside ``fixed`` ones."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        for data in saved(parser):
            test = example(data=data, **fixed)(test)
        return test

    return decorate


@contextmanager
def recorded(parser: str, data: bytes) -> Iterator[None]:
    """Keep ``data`` when the block fails. Each smaller failing input replaces the one before."""
    try:
        yield
    except (StopTest, UnsatisfiedAssumption):
        raise
    except BaseException:
        directory = CORPUS / parser
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "failing").write_bytes(data)
        raise
