"""Memory of a whole system on a laptop. ``tests/bench/up.py`` measures it."""

import pytest

from tests.bench import up

#: A tenth more than the system takes. Pages of library files count less while other processes map them too.
MAX_MIB = 690.0


@pytest.mark.skipif(not hasattr(up.psutil.Process, "memory_maps"), reason="only Linux counts shared pages")
def test_a_system_of_the_demo_models_fits_into_its_memory():
    _, mib = up.measure_run(up.ROOT)

    assert mib < MAX_MIB
