"""The page of first steps, from the paths and what they took."""

from tests.paths.measured import format_table, read_measured
from tests.paths.table import APP

HEAD = f"""# First steps

Five ways from a clone that is installed to something that works, with nothing running before. Every command is run by
`python -m tests.paths`, which writes this page, and what it prints is held against what is right: the answer, a replay
that is identical, a plan that uses all GPUs. So does each run of the tests, whose report ends with the seconds there.
`omnibus up` stays in the foreground, so the others need a second terminal (or
`--detach`); `omnibus` is `.venv/bin/omnibus`, and `ID` is the id of the answer after `chatcmpl-`.

The app of your own is `my_app.py`, in the directory in which the system was started:

```python
{APP.rstrip()}
```

The graph of your own is [`examples/shout.py`](../examples/shout.py); [apps.md](apps.md) says how both are written.
"""


def page() -> str:
    measured = read_measured()
    told = f"Measured on {measured.machine}. Seconds of `omnibus up` end when everything serves."
    return "\n".join([HEAD, told, "", format_table(measured), ""])
