#!/usr/bin/env bash
# scipy 1.17.1, `scipy.optimize.milp` with HiGHS.
# One would guess: `node_limit` ends a search as `time_limit` does: status 1, "limit reached", with the best solution so far.
# What happens: the time limit gives status 1. The node limit gives status 4, "HiGHS Status 16" that it does not recognize, and
# `success` is False in both; yet `x` is a feasible solution and `mip_gap` its distance from the bound.
# Remedy: read `x`, not `status`, after a search with a node limit, and check the solution.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

random = np.random.default_rng(7)
COUNT, ROWS = 60, 20
values, weights = random.integers(10, 100, COUNT), random.integers(5, 60, (ROWS, COUNT))
room = weights.sum(axis=1) // 2


def search(**options):
    return milp(
        -values, integrality=np.ones(COUNT), bounds=Bounds(0, 1), constraints=LinearConstraint(weights, ub=room),
        options=options,
    )


results = {"time_limit 0.05 s": search(time_limit=0.05), "node_limit 5": search(node_limit=5)}
feasible = {}
for name, result in results.items():
    x = None if result.x is None else np.round(result.x)
    feasible[name] = x is not None and bool((weights @ x <= room).all())
    print(f"{name}: status {result.status}, success {result.success}, feasible x: {feasible[name]}, {result.message!r}")
node = results["node_limit 5"]
sys.exit(0 if node.status == 4 and feasible["node_limit 5"] and "16" in node.message else 1)
PYTHON
