"""Saved inputs of each parser: ``corpus/<parser>/`` contains small files from earlier failures.

A failing property writes its smallest input to ``corpus/<parser>/failing``. Rename that file after its defect, and
commit it together with the fix. Each later run then tries it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import example
from hypothesis.errors import StopTest, UnsatisfiedAssumption

CORPUS = Path(__file__).parent / "corpus"


def read_saved(parser: str) -> list[bytes]:
    """Files of a parser's corpus, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / parser).glob("*"))]


def try_saved(parser: str, **fixed: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test to try saved inputs of ``parser`` as ``data``.

    ``fixed`` inputs are tried as well.
    """

    def add_examples(test: Callable[..., None]) -> Callable[..., None]:
        for data in read_saved(parser):
            test = example(data=data, **fixed)(test)
        return test

    return add_examples


@contextmanager
def save_failing(parser: str, data: bytes) -> Iterator[None]:
    """Save ``data`` if the block fails; each smaller failing input replaces the previous one."""
    try:
        yield
    except (StopTest, UnsatisfiedAssumption):
        raise
    except BaseException:
        directory = CORPUS / parser
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "failing").write_bytes(data)
        raise
