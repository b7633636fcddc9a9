"""``omnibus adapters``: load and unload LoRA adapters of a running Omnibus."""

import argparse
import asyncio
from collections.abc import Callable
from urllib.parse import quote

from omnibus.cli import gateway
from omnibus.cli.format.tables import table_lines
from omnibus.cli.gateway import Gateway
from omnibus.cli.output import print_json, print_names

_LOAD, _UNLOAD, _MODELS = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models"


async def run_adapters(options: argparse.Namespace) -> int:
    """Run the subcommand of ``omnibus adapters`` in ``options``."""
    there = gateway.find_gateway(options)
    commands: dict[str, Callable[[Gateway, argparse.Namespace], None]] = {
        "list": _list_adapters,
        "add": _add_adapter,
        "remove": _remove_adapter,
    }
    await asyncio.to_thread(commands[options.adapters_command], there, options)
    return 0


def _list_adapters(there: Gateway, options: argparse.Namespace) -> None:
    adapters = [model for model in there.call("GET", _MODELS)["data"] if model["parent"]]
    if options.json:
        print_json(adapters)
    elif options.quiet:
        print_names(model["id"] for model in adapters)
    else:
        rows = [[model["id"], model["parent"], model["root"]] for model in adapters]
        print("\n".join(table_lines(["ADAPTER", "MODEL", "ROOT"], rows)))


def _add_adapter(there: Gateway, options: argparse.Namespace) -> None:
    body = {"lora_name": options.name, "lora_path": options.path, "load_inplace": options.replace}
    there.call_text("POST", _LOAD, body | ({"base_model_name": options.model} if options.model else {}))
    adapter = there.call("GET", f"{_MODELS}/{quote(options.name)}")
    if options.json:
        print_json(adapter)
    else:
        print(f"the adapter {adapter['id']} of {adapter['parent']} is loaded: requests call it as a model")


def _remove_adapter(there: Gateway, options: argparse.Namespace) -> None:
    there.call_text("POST", _UNLOAD, {"lora_name": options.name})
    if options.json:
        print_json({"id": options.name, "deleted": True})
    else:
        print(f"the adapter {options.name} is unloaded; requests under way finish with it")
