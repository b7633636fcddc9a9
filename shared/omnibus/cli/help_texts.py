"""Help of commands: groups, descriptions and examples."""

import argparse
from collections.abc import Iterator

from omnibus.cli.format.tables import screen_width

#: Headings of the list of all commands, and the commands below each.
GROUPS: dict[str, tuple[str, ...]] = {
    "run it on this machine": ("serve", "up", "demo", "ps", "status", "logs", "down", "env", "settings"),
    "write models and apps": ("app", "tasks", "models", "adapters", "profile"),
    "look at requests, and repeat them": (
        "tail", "show", "replay", "step", "fork", "compare", "bisect", "deadletters", "usage",
    ),
    "several machines": ("node", "nodes"),
    "plan": ("top", "plan", "canary", "whatif", "size"),
    "operate it for others": ("keys", "nats-config", "backup", "restore", "completion"),
}  # fmt: skip
#: Examples of each command.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("omnibus serve ./weights --chat", "omnibus up", "omnibus tail", "omnibus COMMAND --help"),
    "serve": (
        "omnibus serve ./Qwen2.5-0.5B-Instruct           # at port 8000, until Ctrl-C",
        "omnibus serve Qwen/Qwen2.5-0.5B-Instruct --chat # an id that `omnibus models get` has downloaded",
        "omnibus serve ./weights --dtype bfloat16 --max-model-len 8192 --detach",
    ),
    "up": (
        "omnibus up                                      # the small trained models, at port 8000",
        "omnibus up --models models.json --detach        # your own models, in the background",
        "omnibus up --real                               # trained models of packages, and apps on them",
        "omnibus up --only qwen3-tiny --port 0 --name a  # a tiny model, at a free port, next to other runs",
        "OMNIBUS_EXECUTOR_DEVICE=cuda omnibus up --models models.json    # settings are variables: omnibus settings",
    ),
    "node": (
        "omnibus node token join.json                    # beside `omnibus up --listen 10.0.0.1`",
        "omnibus node join join.json                   # on another machine",
        "omnibus node drain n2                           # before you stop or upgrade it",
    ),
    "demo": (
        "omnibus demo",
        'omnibus demo --image photo.png --prompt "What do you see?"',
        'omnibus demo --real --prompt "What is a rainbow?"    # trained models: `make install-real`',
    ),
    "tail": ("omnibus tail", "omnibus tail --nats nats://10.0.0.5:4222"),
    "show": ("omnibus show 4bb189-0-1    # the id from the x-request-id header",),
    "replay": (
        "omnibus replay 4bb189-0-1",
        "omnibus replay 4bb189-0-1 --from vocoder        # only this stage and those after it",
        "omnibus replay 4bb189-0-1 --path 'E>L'          # on another path of the plan",
    ),
    "usage": ("omnibus usage                 # the last day, by tenant and model", "omnibus usage --since 1 --json"),
    "step": ("omnibus step 4bb189-0-1", "omnibus step 4bb189-0-1 --at vision --save seen"),
    "fork": (
        "omnibus fork 4bb189-0-1 thinker params.temperature=0.2",
        "omnibus fork 4bb189-0-1 thinker messages.0.content='What else?'    # the message keeps its media",
    ),
    "compare": ("omnibus compare 4bb189-0-1 4bb189-0-2",),
    "bisect": (
        "omnibus bisect 4bb189-0-1            # which executors give other outputs than the record has",
        "omnibus bisect 4bb189-0-1 --wrong    # the recorded answer is wrong: which ones give it",
    ),
    "deadletters": ("omnibus deadletters", "omnibus deadletters retry 4bb189-0-1"),
    "top": ("omnibus top", "omnibus top --once --json"),
    "adapters add": (
        "omnibus adapters add pirate pirate           # below OMNIBUS_GATEWAY_ADAPTERS_DIR",
        "omnibus adapters add pirate pirate-2 --replace --model qwen2-tiny",
    ),
    "app check": ("omnibus app check my_app.py", 'omnibus app check my_app.py --request \'{"text": "hi"}\''),
    "app run": ('omnibus app run my_app.py \'{"text": "hi"}\'',),
    "app register": ("omnibus app register my_app.py", "omnibus app register package.module"),
    "app invoke": ('omnibus app invoke my_app \'{"text": "hi"}\'',),
    "plan show": ("omnibus plan show", "omnibus plan show 12"),
    "plan diff": ("omnibus plan diff          # what is staged, or changed last", "omnibus plan diff 11 12"),
    "plan rollback": ("omnibus plan rollback 11", "omnibus plan resume        # plan automatically again"),
    "canary start": (
        "omnibus canary start qwen2.5-vl-tiny --option E --dtype bfloat16 --tolerance 0.05",
        "omnibus canary start qwen2.5-vl-tiny --option L --checkpoint ./new --score 0.9 --auto",
        "omnibus canary start qwen2.5-vl-tiny --path EL --share 0    # another plan, in the shadow alone",
    ),
    "models check": (
        "omnibus models check ./weights --adapter ./pirate",
        "omnibus models check Qwen/Qwen2.5-VL-7B-Instruct",
    ),
    "models get": (
        "omnibus models get                              # weights of packages, with sizes and licences",
        "omnibus models get smollm2",
        "omnibus models get Qwen/Qwen2.5-VL-7B-Instruct@main",
    ),
    "profile": ("omnibus profile qwen2.5-vl-tiny --workload examples/workload.json",),
    "size": (
        "omnibus size                                    # the kinds of requests, and their costs",
        "omnibus size chat-stream=50 chat-image=5 speech=2 --seconds 4 --keep-days 30",
    ),
    "keys create": ("omnibus keys create alice --rate 5 --weight 2",),
    "backup": ("omnibus backup omnibus.tar.gz", "omnibus backup store.tar.gz --no-streams"),
    "restore": ("omnibus restore omnibus.tar.gz", "omnibus restore omnibus.tar.gz --replace"),
    "logs": ("omnibus logs gateway -f", "omnibus logs --run 8000 -n 20"),
    "down": ("omnibus down", "omnibus down --all"),
    "settings": ("omnibus settings gateway keys", "omnibus settings --set    # what this shell sets"),
    "completion": ('eval "$(omnibus completion bash)"',),
}


class GroupedHelp(argparse.RawDescriptionHelpFormatter):
    """Help that lists commands below the headings of ``GROUPS``."""

    def add_argument(self, action: argparse.Action) -> None:
        """Widen the column of names by their indentation. argparse does not count it."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += 2 * self._indent_increment

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        commands = {each.dest: each for each in action._get_subactions()}
        self._indent()
        lines = [
            part
            for heading, names in GROUPS.items()
            for part in (f"\n  {heading}\n", *(self._format_action(commands[name]) for name in names))
        ]
        self._dedent()
        return self._join_parts(lines)


def example_lines(example: str) -> Iterator[str]:
    """Yield a command and its comment, above it if one line is too long for the screen."""
    command, _, comment = map(str.strip, example.partition("# "))
    if len(example) + 2 <= (screen_width() or len(example) + 2):
        yield f"  {example}"
    else:
        yield from [f"  # {comment}", f"  {command}"] if comment else [f"  {command}"]


def add_help_texts(parser: argparse.ArgumentParser, name: str = "") -> None:
    """Add descriptions and examples to ``parser`` and its subcommands. A description is the short help."""
    if examples := EXAMPLES.get(name):
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = "\n".join(["examples:", *(line for each in examples for line in example_lines(each))])
    if not name:
        parser.formatter_class = GroupedHelp
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help for each in action._choices_actions}
            for below, command in action.choices.items():
                text = helps.get(below) or ""
                command.description = command.description or f"{text[:1].upper()}{text[1:]}."
                add_help_texts(command, f"{name} {below}".strip())
