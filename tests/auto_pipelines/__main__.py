"""``python -m tests.auto_pipelines [--write] [NAME ...]``: try pipelines and print a row for each."""

import json
import sys

from tests.auto_pipelines import trials


def main() -> None:
    arguments = sys.argv[1:]
    outcomes: dict[str, str] = {}
    for name in [each for each in arguments if each != "--write"] or trials.list_names():
        outcomes[name] = trials.try_apart(name)
        print(f"{name:24} {outcomes[name]}", flush=True)
    for outcome in trials.EQUAL.values():
        print(f"{list(outcomes.values()).count(outcome):3} of {len(outcomes)} {outcome}")
    if "--write" in arguments:
        path = trials.outcomes_path()
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{json.dumps(outcomes, indent=1, sort_keys=True)}\n")


if __name__ == "__main__":
    main()
