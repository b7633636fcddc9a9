"""The version-independent parts of the ``vllm`` engine.

Nothing here imports vLLM: ``protocol`` is the interface that a version must implement, as ``omnibus_llm.vllm.v032``
does.
"""
