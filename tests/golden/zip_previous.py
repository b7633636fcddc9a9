"""``python zip_previous.py FILE``: archive an earlier build's code of sidecars and clients.

``tests/contract/test_upgrade_sidecar.py`` uses it. Run it in a tree of that build, as ``record_previous.py``. The
archive contains the imports of ``previous_node.py``, and all modules of sidecars and tensors. Equal trees give equal
archives.
"""

import sys
import zipfile
from pathlib import Path

import omnibus.tensors.client  # noqa: F401 - the archive must contain it and its imports
import services.sidecar.server
import services.sidecar.service

TREE = Path(services.sidecar.server.__file__).parents[2]
EPOCH = (2000, 1, 1, 0, 0, 0)


def find_modules() -> set[Path]:
    """Files of imported modules, and of the sidecar and tensor rooms."""
    imported = [module for name, module in sys.modules.items() if name.partition(".")[0] in ("omnibus", "services")]
    files = {Path(file) for module in imported if (file := getattr(module, "__file__", None))}
    rooms = (TREE / "services" / "sidecar", TREE / "shared" / "omnibus" / "tensors")
    return files | {file for room in rooms for file in room.rglob("*.py")}


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1], "w") as archive:
        for file in sorted(find_modules()):
            inside = file.relative_to(TREE).as_posix().removeprefix("shared/")
            archive.writestr(zipfile.ZipInfo(inside, EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
