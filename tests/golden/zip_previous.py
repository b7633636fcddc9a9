"""``python zip_previous.py FILE``: archive an earlier build's code of sidecars and clients.

``tests/contract/test_upgrade_sidecar.py`` uses it. Run it in a tree of that build, as ``record_previous.py``. The
archive contains the imports of ``previous_node.py``, and all modules of sidecars and tensors. Equal trees give equal
archives. Builds before 0.1.0 had the package ``services.sidecar``, which the current archive contains.
"""

import sys
import zipfile
from pathlib import Path

import omnibus.tensors.client
import omnibus_sidecar.server
import omnibus_sidecar.service

SIDECAR = Path(omnibus_sidecar.server.__file__).parent
TENSORS = Path(omnibus.tensors.client.__file__).parent
PATHS = (TENSORS.parents[1], SIDECAR.parent)
EPOCH = (2000, 1, 1, 0, 0, 0)


def find_modules() -> set[Path]:
    """Files of imported modules, and of the sidecar and tensor rooms."""
    own_modules = [
        module for name, module in sys.modules.items() if name.partition(".")[0] in ("omnibus", "omnibus_sidecar")
    ]
    files = {Path(file) for module in own_modules if (file := getattr(module, "__file__", None))}
    return files | {file for room in (SIDECAR, TENSORS) for file in room.rglob("*.py")}


def name_inside(file: Path) -> str:
    """The file's path from the entry of ``PATHS`` that contains it."""
    return next(file.relative_to(path).as_posix() for path in PATHS if file.is_relative_to(path))


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1], "w") as archive:
        for file in sorted(find_modules()):
            archive.writestr(zipfile.ZipInfo(name_inside(file), EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
