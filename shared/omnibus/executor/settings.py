"""Settings of executors and their engines, from the environment."""

import json
from typing import ClassVar

from omnibus.settings import Settings

#: A dtype of language models on a CPU: weights are 8-bit integers, everything else is float32.
INT8 = "int8"


def float_dtype(dtype: str) -> str:
    """Return the dtype of activations, and of weights that are not integers."""
    return "float32" if dtype == INT8 else dtype


class ExecutorSettings(Settings, frozen=True):
    """One executor. Under ``omnibus up`` and in a cluster most of them are set by the plan."""

    area: ClassVar[str] = "EXECUTOR"

    #: Unique id of this replica; empty: model, option and a random tail.
    id: str = ""
    #: Name of the model in the plan, and its family.
    model: str = ""
    family: str = ""
    #: A directory, or an id of the Hugging Face hub in the local cache, such as ``Qwen/Qwen2.5-VL-7B-Instruct``.
    checkpoint: str = ""
    #: Whether to download a missing checkpoint with a hub id at the start. Off: the executor does not start.
    download: bool = False
    #: Seconds until the download times out.
    download_seconds: float = 3600.0
    #: LoRA adapters of the language model: a JSON object of names to directories or hub ids.
    adapters: str = ""
    #: Directory of further adapters, which may be loaded at run time; empty: none.
    adapters_dir: str = ""
    #: Of these, the number in memory and their largest rank. The least recently used one is evicted; if all are in use,
    #: requests for another one wait.
    adapter_slots: int = 8
    adapter_rank: int = 64
    #: Name of the option that it runs.
    option: str = ""
    #: Its cell, for a model in cells; its option ends with this name.
    cell: str = ""
    #: Distinguishes executors of plans that differ in what this option does; empty: any plan.
    origin: str = ""
    #: Components of the option, comma separated.
    components: str = ""
    #: Their unit tasks in the same order, comma separated; empty: named after the family's kinds.
    tasks: str = ""
    #: Unit tasks of apps with their own engine: a JSON list of ``TaskRecord``; empty: ``checkpoint`` has it.
    source: str = ""
    #: Directory from which such tasks may be imported; empty: installed modules only.
    apps_dir: str = ""
    #: Engine: ``module:function(component, settings)``, which returns the runner.
    engine: str = "omnibus_engines:transformers"
    #: JSON file with times and sizes of a simulated executor; empty: ``checkpoint`` is that file.
    profile: str = ""
    #: Torch device, and the type of weights and activations. ``int8`` (``omnibus_engines:transformers`` on a CPU):
    #: float32, but weights of language models as 8-bit integers.
    device: str = "cpu"
    dtype: str = "float32"
    #: Whether a GPU copies directly from and to the arena (``cudaHostRegister``). This takes the memory of the whole
    #: arena at once. No effect on a CPU.
    pin_arena: bool = False
    #: Whether to record computations (``omnibus_engines:transformers``): steps of language models and talkers on a GPU
    #: as CUDA graphs, and those of all small models on a CPU, to run them without Python.
    graphs: bool = True
    #: CPU threads per engine; 0: the library's choice.
    threads: int = 1
    #: CPU priority while it serves, 0 to 19 as in ``nice(1)``; on Linux of the whole session. ``omnibus up`` sets 10,
    #: so that the gateway answers while executors compute.
    nice: int = 0
    #: Invocations in flight before the executor answers ``busy``.
    credits: int = 64
    #: Rows of a batch: slots of an LLM, items of an encoder.
    batch: int = 16
    #: Bytes up to which a tensor travels within its message to other nodes, because a pull costs more. 0: all are
    #: pulled.
    inline: int = 8192
    #: Tokens of an encoder's batch, in proportion to patches and frames: bounds its memory. A larger item is a batch by
    #: itself.
    media_tokens: int = 16384
    #: MiB of embeddings that an encoder caches by the content of media; 0: none, and concurrent equal items are all
    #: computed.
    cache_mib: int = 256
    #: MiB of prompts that a language model caches for next turns, in addition to its slots
    #: (``omnibus_engines:transformers``; vLLM uses its own cache). 0: none.
    prompt_cache_mib: int = 256
    #: Maximum tokens of a sequence; 0: the model's limit.
    context: int = 0
    #: Maximum seconds of speech in an answer, and per token of its text, in addition to three seconds. Longer speech is
    #: cut, and the answer ends with ``length``. 0: only the checkpoint's ``talker_max_new_tokens``.
    speech_seconds: float = 300.0
    speech_token_seconds: float = 1.0
    #: Prompt tokens in one step of an LLM without goals.
    share: int = 512
    #: Goals in seconds for the first token and between two tokens, for steps of an LLM and of encoders in the same
    #: executor. Measured costs limit each step. 0: no goal. A plan sets them from ``planned.goals`` (``first_token``,
    #: ``token``).
    ttft: float = 0.0
    tbt: float = 0.0

    @property
    def adapter_checkpoints(self) -> dict[str, str]:
        """Directories, or ids of the hub, of ``adapters`` by their names."""
        return dict(json.loads(self.adapters)) if self.adapters else {}


class LlamaCppSettings(Settings, frozen=True):
    """Settings of the engine ``omnibus_engines:llama_cpp`` beyond ``ExecutorSettings``."""

    area: ClassVar[str] = "LLAMA_CPP"

    #: Memory of keys and values in MiB for executors without ``context``: all slots share it equally.
    kv_mib: int = 1024


class VllmSettings(Settings, frozen=True):
    """Settings of the engine ``omnibus_engines:vllm`` beyond ``ExecutorSettings``."""

    area: ClassVar[str] = "VLLM"

    #: Maximum prompt tokens in a step; longer prompts take several. Goals may reduce it.
    step_tokens: int = 8192
    #: Memory of the KV cache; 0: what ``memory`` leaves of a GPU, 512 MiB on a CPU.
    kv_mib: int = 0
    #: Share of a GPU's memory for weights, activations and KV cache.
    memory: float = 0.9
    #: Whether prompts reuse keys and values of an earlier prompt with the same prefix.
    prefix_cache: bool = True
    #: Quantisation of weights at load, by vLLM's name, such as ``fp8``; empty: the checkpoint's.
    quantization: str = ""
    #: Tokens that a step guesses by n-grams of prompt and answer; 0: none. Greedy answers do not change; sampled ones
    #: use other random numbers.
    speculative_tokens: int = 0
    #: Checkpoint of a small model with the same tokeniser that guesses instead, a directory or hub id; empty: n-grams.
    speculative_model: str = ""
    #: GPUs that share each layer: an option's ``gpus`` divided by ``pipeline_parallel``.
    tensor_parallel: int = 1
    #: Groups of such GPUs, each with a part of the layers.
    pipeline_parallel: int = 1
    #: Skip compilation and CUDA graphs: a faster start, slower steps. Always on a CPU.
    eager: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel * self.pipeline_parallel
