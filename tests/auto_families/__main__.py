"""``python -m tests.auto_families [--media] [--write] [TYPE ...]``: try language models and print a row for each.

With ``--media``, these are models with encoders. It ends with the outcomes that differ from the stored ones; ``--write``
stores them instead, for the installed version of transformers.
"""

import sys
from collections import Counter

from tests.auto_families import media_trials, trials


def main() -> None:
    arguments = sys.argv[1:]
    tried = media_trials if "--media" in arguments else trials
    chosen = [each for each in arguments if not each.startswith("--")] or tried.list_types()
    ways: dict[str, str] = {}
    for model_type in chosen:
        trial = trials.try_apart(model_type, tried.try_type)
        ways[model_type] = trial.way
        print(f"{model_type:28} {trial.cls:36} {trial.way:28} {trial.reason[:100]!r}", flush=True)
    for way, count in Counter(ways.values()).most_common():
        print(f"{count:4} {way}")
    if "--write" in arguments:
        trials.write_outcomes(ways, tried.KIND)
    else:
        print("\n".join(trials.compare_outcomes(ways, tried.KIND)))


if __name__ == "__main__":
    main()
