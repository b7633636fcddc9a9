"""vLLM's own OpenAI server without CUDA: ``python -m tests.bench.vllm_server`` and its flags."""

import runpy

from omnibus_models import torchvision_cpu

# Processes that vLLM spawns import this module by name, and run the following code.
torchvision_cpu.install_operators()

from omnibus_llm.vllm.v032 import model_registry  # noqa: E402

# Otherwise vLLM looks at the class in a process that imports nothing of this.
model_registry.register_models(["Qwen2_5_VLForConditionalGeneration"])

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
