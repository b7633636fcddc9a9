"""vLLM's own OpenAI server, on a machine whose torch has no CUDA: ``python -m tests.bench.vllm_server`` and its flags."""

import runpy

from omnibus_models import torchvision_cpu

# Processes that vLLM spawns import this module for its name, and with it this line.
torchvision_cpu.install()

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
