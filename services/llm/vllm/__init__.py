"""Language models of the ``vllm`` engine, as far as it does not depend on a version of vLLM.

Nothing here imports vLLM: ``protocol`` is what a version has to provide, ``services.llm.vllm.v032`` provides it.
"""
