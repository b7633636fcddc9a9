#!/usr/bin/env bash
# Claude Code 2.1.332 with `ANTHROPIC_BASE_URL`, a server on this machine, and an unknown model.
#
# One would guess: the conversation ends with the user's message, and instructions are in `system`. In fact the first
# request ends with a message of the role `system`, after the user's. Chat templates that accept this role only at the
# beginning, and servers that answer the last message, need a place for it.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-audit --no-fund --silent @anthropic-ai/claude-code@2.1.332
cat >"$work/try.py" <<'PY'
import json, os, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

roles = []

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        roles.append([message["role"] for message in body.get("messages", ())])
        self.send_response(400)
        self.end_headers()

    def log_message(self, *_):
        pass

work = sys.argv[1]
server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
claude = f"{work}/node_modules/.bin/claude"
print(subprocess.run([claude, "--version"], capture_output=True, text=True).stdout.strip())
home = {"PATH": os.environ["PATH"], "HOME": work, "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_address[1]}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
subprocess.run([claude, "--model", "m", "--print", "hello"], cwd=work, env=home, stdin=subprocess.DEVNULL, timeout=60,
               capture_output=True)
print("roles of the first request:", roles[0])
assert roles[0] == ["user", "system"], "the behaviour has changed"
PY
python3 "$work/try.py" "$work"
