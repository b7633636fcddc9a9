"""Stand-in for the ``nats`` CLI: the commands of docs/debugging.md, with the same bytes.

It serves machines without the CLI. It follows the CLI's source (natscli, July 2026): flags, defaults, timeouts, and the
ends of its waits. Unknown arguments are errors, so tests also find commands that the CLI would reject, as far as the
stand-in covers them.
"""

import argparse
import asyncio
import json
import os
import sys
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

TIMEOUT = 5.0  # seconds: the CLI's --timeout
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    number = text.rstrip("msh")
    return float(number) * _UNITS[text[len(number) :]]


def build_parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="nats", allow_abbrev=False)
    commands = root.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("sub", allow_abbrev=False)
    sub.add_argument("subjects", nargs="*")
    for flag in ("--raw", "--headers-only", "--all", "--terminate-at-end"):
        sub.add_argument(flag, action="store_true")
    sub.add_argument("--count", type=int, default=0)
    sub.add_argument("--stream", default="")
    for name in ("pub", "req"):
        one = commands.add_parser(name, allow_abbrev=False)
        one.add_argument("subject")
        one.add_argument("body", nargs="?")
        one.add_argument("-H", "--header", action="append", default=[])
        one.add_argument("--no-templates", action="store_true")
        if name == "req":
            one.add_argument("--raw", action="store_true")
            one.add_argument("--replies", type=int, default=1)
            one.add_argument("--reply-timeout", type=parse_duration, default=0.3)
            one.add_argument("--wait-for-empty", action="store_true")
    stream = commands.add_parser("stream", allow_abbrev=False).add_subparsers(dest="action", required=True)
    view = stream.add_parser("view", allow_abbrev=False)
    get = stream.add_parser("get", allow_abbrev=False)
    purge = stream.add_parser("purge", allow_abbrev=False)
    for one in (view, get, purge):
        one.add_argument("stream")
    view.add_argument("--subject", required=True)
    get.add_argument("--last-for", required=True)
    purge.add_argument("--subject", required=True)
    purge.add_argument("--force", action="store_true", required=True)  # else it asks
    service = commands.add_parser("service", allow_abbrev=False).add_subparsers(dest="action", required=True)
    service.add_parser("list")
    for name in ("info", "stats"):
        service.add_parser(name).add_argument("service")
    return root


async def main() -> int:
    options = build_parser().parse_args()
    nc = await nats.connect(os.environ["NATS_URL"])
    try:
        run = {
            "sub": run_subscribe,
            "pub": run_publish,
            "req": run_request,
            "stream": run_stream,
            "service": run_service,
        }
        return await run[options.command](nc, options)
    finally:
        await nc.close()


def print_message(message: Msg, options: argparse.Namespace) -> None:
    if options.raw:
        print(message.data.decode() or "nil body", flush=True)
        return
    headers = "".join(f"{name}: {value}\n" for name, value in (message.headers or {}).items())
    body = "" if options.headers_only else f"{message.data.decode()}\n"
    print(f'[#] Received on "{message.subject}"\n{headers}{body}', flush=True)


async def run_subscribe(nc: Client, options: argparse.Namespace) -> int:
    if options.all or options.stream:
        return await consume_stream(nc, options)
    queue: asyncio.Queue[Msg] = asyncio.Queue()
    for subject in options.subjects:
        await nc.subscribe(subject, cb=queue.put)
    await nc.flush()
    count = 0
    while not options.count or count < options.count:
        print_message(await queue.get(), options)
        count += 1
    return 0


async def consume_stream(nc: Client, options: argparse.Namespace) -> int:
    """Consume one subject of a stream through an ephemeral consumer without acknowledgements.

    The subject determines the stream.
    """
    [subject] = options.subjects
    js = nc.jetstream()
    name = options.stream or await js.find_stream_name_by_subject(subject)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, filter_subject=subject)
    subscription = await js.pull_subscribe(subject, stream=name, config=config)
    count = 0
    while not options.count or count < options.count:
        [message] = await subscription.fetch(1, timeout=60)
        print_message(message, options)
        count += 1
        if options.terminate_at_end and not message.metadata.num_pending:
            break
    return 0


def read_payload(options: argparse.Namespace) -> tuple[bytes, dict[str, str] | None]:
    """The given body or all of stdin, and the stripped headers."""
    body = options.body.encode() if options.body is not None else sys.stdin.buffer.read()
    if not options.no_templates and b"{{" in body:
        raise SystemExit("the body would be taken for a template")
    headers = dict(map(str.strip, header.split(":", 1)) for header in options.header)
    return body, headers or None


async def run_publish(nc: Client, options: argparse.Namespace) -> int:
    body, headers = read_payload(options)
    await nc.publish(options.subject, body, headers=headers)
    await nc.flush()
    return 0


async def run_request(nc: Client, options: argparse.Namespace) -> int:
    """Print the first reply within the timeout, then others until a pause.

    The pause is the mean of the replies' times plus ``--reply-timeout``.
    """
    body, headers = read_payload(options)
    inbox = nc.new_inbox()
    replies = await nc.subscribe(inbox)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await nc.publish(options.subject, body, reply=inbox, headers=headers)
    reply_count = 1 << 15 if options.wait_for_empty else options.replies
    timeout, count, elapsed = TIMEOUT, 0, 0.0
    while True:
        try:
            message = await replies.next_msg(timeout)
        except nats.errors.TimeoutError:
            return 0
        if (message.headers or {}).get("Status") == "503":
            print("No responders are available", file=sys.stderr)
            return 0
        print(message.data.decode() or "nil body", flush=True)
        count += 1
        elapsed += loop.time() - began
        if count == reply_count or (reply_count and not message.data):
            return 0
        timeout = elapsed / count + options.reply_timeout if reply_count else TIMEOUT - (loop.time() - began)


async def run_stream(nc: Client, options: argparse.Namespace) -> int:
    js = nc.jetstream()
    if options.action == "purge":
        await js.purge_stream(options.stream, subject=options.subject)
    elif options.action == "get":
        last_message = await js.get_last_msg(options.stream, options.last_for)
        print(
            f"Item: {options.stream}#{last_message.seq} on Subject {last_message.subject}\n\n{(last_message.data or b'').decode()}\n"
        )
    else:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, filter_subject=options.subject)
        subscription = await js.pull_subscribe(options.subject, stream=options.stream, config=config)
        for message in await subscription.fetch(10, timeout=2):
            print(f"[{message.metadata.sequence.stream}] Subject: {message.subject}\n{message.data.decode()}\n")
    return 0


async def run_service(nc: Client, options: argparse.Namespace) -> int:
    """Query all instances, and collect replies until none arrives for a moment."""
    verb = {"list": "PING", "info": "INFO", "stats": "STATS"}[options.action]
    name = f".{options.service}" if options.action != "list" else ""
    inbox = nc.new_inbox()
    replies = await nc.subscribe(inbox)
    await nc.publish(f"$SRV.{verb}{name}", b"", reply=inbox)
    timeout, statistics = TIMEOUT, list[dict[str, Any]]()
    while True:
        try:
            message = await replies.next_msg(timeout)
        except nats.errors.TimeoutError:
            break
        if (message.headers or {}).get("Status") == "503":
            raise SystemExit("no service instances found")
        statistics.append(json.loads(message.data))
        timeout = 0.5
    for each in statistics:
        assert each["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
        print(json.dumps(each))
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
