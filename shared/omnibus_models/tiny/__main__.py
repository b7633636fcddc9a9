"""``python -m omnibus_models.tiny qwen2_5_vl DIR``: write one tiny checkpoint."""

import argparse
import sys
from pathlib import Path

from omnibus import errors
from omnibus_models import tiny


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="omnibus_models.tiny", description="Build a tiny random checkpoint.")
    parser.add_argument("family", choices=tiny.FAMILIES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--llm-seed", type=int, help="other weights for the LLM alone: a twin that can share encoders")
    parser.add_argument("--wide", action="store_true", help="heads of 32 in the LLM, for vLLM on a CPU")
    options = parser.parse_args(arguments)
    try:
        checkpoint = tiny.build(options.family, options.directory, options.seed, options.llm_seed, wide=options.wide)
    except errors.OmnibusError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    sys.stdout.write(f"{checkpoint}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
