#!/usr/bin/env bash
# Codex 0.171.0 with a provider of its own, a server on this machine, and the default configuration.
#
# One would guess: tools that only OpenAI's servers run are offered to OpenAI alone. In fact Codex sends `web_search` to
# every provider, and functions inside a tool of type `namespace`. `web_search = "disabled"` removes the first one.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-audit --no-fund --silent @openai/codex@0.171.0
cat >"$work/try.py" <<'PY'
import json, os, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

bodies = []

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(400)
        self.end_headers()

    def log_message(self, *_):
        pass

def run(work, more):
    home = os.path.join(work, "home" + ("-off" if more else ""))
    os.makedirs(home)
    with open(f"{home}/config.toml", "w") as file:
        file.write(f'model = "m"\nmodel_provider = "own"\n{more}\n[model_providers.own]\nname = "own"\n'
                   f'base_url = "http://127.0.0.1:{server.server_address[1]}/v1"\nwire_api = "responses"\n')
    bodies.clear()
    subprocess.run([f"{work}/node_modules/.bin/codex", "exec", "--skip-git-repo-check", "hello"], cwd=home, timeout=60,
                   env={"PATH": os.environ["PATH"], "HOME": home, "CODEX_HOME": home},
                   stdin=subprocess.DEVNULL, capture_output=True)
    types = sorted({tool["type"] for tool in bodies[0]["tools"]})
    print(f"{more or 'default'}: types of tools {types}")
    return types

work = sys.argv[1]
server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(subprocess.run([f"{work}/node_modules/.bin/codex", "--version"], capture_output=True, text=True).stdout.strip())
assert run(work, "") == ["function", "namespace", "web_search"], "the behaviour has changed"
assert run(work, 'web_search = "disabled"') == ["function", "namespace"], "the behaviour has changed"
PY
python3 "$work/try.py" "$work"
