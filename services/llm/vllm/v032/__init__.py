"""All that depends on vLLM 0.32: its engine, its connectors and what runs in its processes.

Connectors, stat loggers and model runners change between minor versions of vLLM. Another version gets a
package of its own beside this one; ``services.llm.vllm`` stays as it is.
"""
