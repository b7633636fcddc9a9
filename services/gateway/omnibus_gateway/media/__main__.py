"""``python -m omnibus_gateway.media image=FILE ...``: facts about media files, or an error about one of them.

For ``omnibus demo``, which checks files before anything starts; see ``omnibus.process.run_module``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from omnibus.errors import BadRequest, Rejected
from omnibus.process import run_module
from omnibus_gateway.media.inspect import inspect_media


def inspect_files(file_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return facts about files, each named as ``modality=path``. Raises ``BadRequest`` that starts with the path."""
    infos = []
    for each in file_names:
        modality, _, path = each.partition("=")
        try:
            infos.append(msgspec.to_builtins(inspect_media(Path(path).read_bytes(), modality)))
        except OSError as error:
            raise BadRequest(f"{path}: {error.strerror}") from error
        except Rejected as error:
            raise BadRequest(f"{path}: {error.message}") from error
    return infos


if __name__ == "__main__":
    sys.exit(run_module.report_answer(lambda: inspect_files(sys.argv[1:])))
