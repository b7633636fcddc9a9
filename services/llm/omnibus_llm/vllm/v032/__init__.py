"""Code that depends on vLLM 0.32: its engine, its connectors and the code in its processes.

Connectors, stat loggers and model runners change between minor versions of vLLM. Another version gets its own package
next to this one; ``omnibus_llm.vllm`` stays unchanged.
"""
