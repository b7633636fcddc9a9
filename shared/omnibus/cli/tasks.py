"""``omnibus tasks``: unit tasks, the apps that use them and the executors that run them."""

import argparse
import asyncio

from omnibus.cli import gateway
from omnibus.cli.format.tables import table_lines
from omnibus.cli.output import print_json, print_names


async def list_tasks(options: argparse.Namespace) -> int:
    there = gateway.find_gateway(options)
    tasks = (await asyncio.to_thread(there.call, "GET", "/v1/tasks"))["data"]
    if options.json:
        print_json(tasks)
        return 0
    if options.quiet:
        print_names(task["name"] for task in tasks)
        return 0
    rows = [
        [
            task["name"],
            task["kind"],
            task["model"],
            task["component"],
            ", ".join(task["users"]) or "-",
            ", ".join(f"{executor['id']} {executor['state']}" for executor in task["executors"]) or "none",
        ]
        for task in tasks
    ]
    head = ["TASK", "KIND", "MODEL", "COMPONENT", "USED BY", "EXECUTORS"]
    print("\n".join(table_lines(head, rows, spare=["KIND", "MODEL", "COMPONENT"])))  # the task's name contains them
    return 0
