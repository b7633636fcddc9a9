"""Records which functions of this project a process calls, from one SIGUSR2 to the next.

Python imports this at the start of each process that has its directory first in ``PYTHONPATH``. Each record is a file
``<pid>.json`` in the directory OMNIBUS_TEST_WALKS: all places that were called, [file below the root, function].
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_ROOT = f"{Path(__file__).parents[4]}/"
_places: dict[CodeType, tuple[str, str] | None] = {}
_calls: set[tuple[str, str]] = set()


def _record_call(frame: FrameType, event: str, argument: Any) -> None:
    if event != "call":
        return
    code = frame.f_code
    if code not in _places:
        file = code.co_filename.removeprefix(_ROOT)
        _places[code] = (file, code.co_qualname) if file.startswith(("services/", "shared/")) else None
    if (place := _places[code]) is not None:
        _calls.add(place)


def _toggle(number: int, frame: FrameType | None) -> None:
    if sys.getprofile() is None:
        sys.setprofile(_record_call)
        return
    sys.setprofile(None)
    path = Path(os.environ["OMNIBUS_TEST_WALKS"]) / f"{os.getpid()}.json"
    path.with_suffix(".part").write_text(json.dumps([*_calls]))
    path.with_suffix(".part").rename(path)
    _calls.clear()


signal.signal(signal.SIGUSR2, _toggle)
