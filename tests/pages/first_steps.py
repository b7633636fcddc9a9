"""The page of first steps, from the paths and their durations."""

from pathlib import Path

from tests.paths.measured import format_table, read_measured
from tests.paths.table import APP, ASK

EXAMPLE = (Path(__file__).parents[2] / "examples" / "shout.py").read_text()
HEAD = f"""# First steps

Try five things on your machine after `make demo` has installed Omnibus. Keep `omnibus up` running in one terminal, and use
another one for the other commands. `omnibus` is `.venv/bin/omnibus`. Stop `omnibus up` with Ctrl-C; with `--detach` it
runs in the background, and `omnibus ps`, `logs` and `down` manage it.

## Get an answer

```sh
.venv/bin/omnibus up
```

```sh
{ASK}
```

The answer is `two red circles on blue`. To serve [your own checkpoint](models.md#serve-a-checkpoint), use `omnibus serve DIRECTORY`.

## Write an app

An app is a Python function that calls models. Save this as `my_app.py` in the directory where you started the system:

```python
{APP.rstrip()}
```

```sh
omnibus app register my_app.py
omnibus app invoke my_app '"a green square on white"'
```

The app prints `A GREEN SQUARE ON WHITE`. [Writing models and apps](apps.md) has the details.

## Write a graph

A model is a graph of components. [`examples/shout.py`](../examples/shout.py) defines two components with engines of their
own, connects them, and serves the result as an app:

<!-- examples/shout.py -->
```py
{EXAMPLE.rstrip()}
```

One command starts the services and an executor for each component, sends a request, and stops everything:

```sh
.venv/bin/omnibus app run examples/shout.py '{{"text": "hello out there"}}'
```

## Replay a request

Start `omnibus up` again and send the request of the first step. `ID` is the `id` in its response without `chatcmpl-`, or
the header `x-request-id`:

```sh
.venv/bin/omnibus show ID
.venv/bin/omnibus replay ID
```

`show` prints the graph, the route and a waterfall. `replay` runs the request again and prints
`identical to the recorded answer`.

## Plan 16 GPUs

The planner decides which components share a GPU, and how many of each run. Try it with 16 simulated GPUs:

```sh
.venv/bin/omnibus up --models examples/simulated/models.json
.venv/bin/omnibus plan show
.venv/bin/omnibus top
```

`plan show` prints the plan with its reasons, and `top` the live load. To plan for your own model, measure it with
`omnibus profile` ([profiling](models.md#profiling), [planner](planner.md)).

## Time

`python -m tests.paths` runs these commands, checks their output and measures them. The time of `omnibus up` ends when
everything serves.
"""


def make_page() -> str:
    measurements = read_measured()
    return "\n".join([HEAD, f"Measured on {measurements.machine}:", "", format_table(measurements), ""])
