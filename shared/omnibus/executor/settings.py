"""Settings of executors and their engines, from the environment."""

import json
from typing import ClassVar

from omnibus.settings import Settings


class ExecutorSettings(Settings, frozen=True):
    """One executor. Under ``omnibus up`` and in a cluster most of them are set by the plan."""

    area: ClassVar[str] = "EXECUTOR"

    #: Unique id of this replica; empty: made from model, option and a random tail.
    id: str = ""
    #: Name of the model in the plan, and its family.
    model: str = ""
    family: str = ""
    #: A directory, or an id of the Hugging Face hub that its cache has, ``Qwen/Qwen2.5-VL-7B-Instruct``.
    checkpoint: str = ""
    #: Whether an id whose checkpoint is not there is downloaded when the executor starts. Off: it does not start.
    download: bool = False
    #: Seconds that the download may take.
    download_seconds: float = 3600.0
    #: LoRA adapters of the language model: a JSON object of their names, and of directories or ids of the hub.
    adapters: str = ""
    #: Directory that others may be loaded from while it serves, with what lies there; empty: none.
    adapters_dir: str = ""
    #: Of those, how many are in memory at a time, and their largest rank. The least recently used one leaves, and a
    #: request for one more waits while all are in use.
    adapter_slots: int = 8
    adapter_rank: int = 64
    #: Name of the option that it runs.
    option: str = ""
    #: Cell that it belongs to, of a model in cells; its option ends with it.
    cell: str = ""
    #: What tells it from executors of other plans that do not do the same; empty: it stands for any.
    origin: str = ""
    #: Components of the option, comma separated.
    components: str = ""
    #: Their unit tasks in the same order, comma separated; empty: named after the family's kinds.
    tasks: str = ""
    #: Unit tasks of apps that bring their own engine: a JSON list of ``TaskRecord``; empty: ``checkpoint`` holds it.
    source: str = ""
    #: Directory below which such tasks may be imported from; empty: from no directory, installed modules alone.
    apps_dir: str = ""
    #: What makes the runners: ``module:function(component, settings)``.
    engine: str = "omnibus_engines:transformers"
    #: JSON file with the times and sizes that a simulated executor follows; empty: ``checkpoint`` is that file.
    profile: str = ""
    #: Device of torch, and the type of weights and activations.
    device: str = "cpu"
    dtype: str = "float32"
    #: Whether a GPU copies from and to the node's arena by itself (``cudaHostRegister``). All of the arena then takes
    #: memory at once, and stays in it. On a CPU it has no effect.
    pin_arena: bool = False
    #: Whether steps of language models and talkers on a GPU are recorded as CUDA graphs and launched at once
    #: (``omnibus_engines:transformers``). On a CPU it has no effect.
    graphs: bool = True
    #: CPU threads per engine; 0: the library's choice.
    threads: int = 1
    #: Priority for the CPU, from 0 to 19 as in ``nice(1)``, once it serves. On Linux it applies to the whole session.
    #: ``omnibus up`` sets 10, so that the gateway answers while executors compute.
    nice: int = 0
    #: Invocations that may be in flight here before ``busy`` is the answer.
    credits: int = 64
    #: Rows of a batch: slots of an LLM, items of an encoder.
    batch: int = 16
    #: Bytes up to which a tensor travels within its message to readers on other nodes: a pull of its own costs more.
    #: 0: all are pulled.
    inline: int = 8192
    #: Tokens of one batch of an encoder, in proportion to patches and frames: bounds its memory. A larger item
    #: makes a batch by itself.
    media_tokens: int = 16384
    #: MiB of embeddings that an encoder keeps by the content of their media; 0: none, and equal items that come
    #: together are all computed.
    cache_mib: int = 256
    #: MiB of prompts that a language model keeps for the next turns of their conversations, beside the memory of its
    #: slots (``omnibus_engines:transformers``; vLLM keeps them in its own cache). 0: none.
    prompt_cache_mib: int = 256
    #: Tokens a sequence may have here; 0: the model's own limit.
    context: int = 0
    #: Seconds of speech that a talker gives an answer, at most, and for each token of its text, after three seconds
    #: for the answer. A talker that does not find its end stops there, and the answer ends with ``length``. 0: no
    #: limit but the checkpoint's ``talker_max_new_tokens``.
    speech_seconds: float = 300.0
    speech_token_seconds: float = 1.0
    #: Prompt tokens in one step of an LLM, where no goal says it.
    share: int = 512
    #: Seconds to the first token, and between two tokens, that the steps of an LLM and of encoders beside it are
    #: to keep; how much goes into a step is measured. 0: no goal. A plan sets them for models whose ``planned.goals``
    #: have ``first_token`` and ``token``.
    ttft: float = 0.0
    tbt: float = 0.0

    @property
    def adapter_checkpoints(self) -> dict[str, str]:
        """Directories, or ids of the hub, of ``adapters`` by their names."""
        return dict(json.loads(self.adapters)) if self.adapters else {}


class VllmSettings(Settings, frozen=True):
    """Settings of the engine ``omnibus_engines:vllm`` beyond ``ExecutorSettings``."""

    area: ClassVar[str] = "VLLM"

    #: Most prompt tokens in one step; longer prompts take several. With goals fewer, as their time allows.
    step_tokens: int = 8192
    #: Memory of the KV cache; 0: what ``memory`` leaves of a GPU, 512 MiB on a CPU.
    kv_mib: int = 0
    #: Share of a GPU's memory for weights, activations and KV cache.
    memory: float = 0.9
    #: Whether a prompt that begins as an earlier one takes the keys and values of that from the KV cache.
    prefix_cache: bool = True
    #: How weights are quantised when they are loaded, by vLLM's name, as ``fp8``; empty: as the checkpoint says.
    quantization: str = ""
    #: Tokens that a step guesses from what the prompt and the answer have said already (n-grams); 0: none. Greedy
    #: answers stay the same, sampled ones follow other random numbers.
    speculative_tokens: int = 0
    #: Checkpoint of a small model with the same tokeniser that guesses them, a directory or an id of the hub; empty:
    #: n-grams guess.
    speculative_model: str = ""
    #: GPUs that each layer is split over; of an option those that ``pipeline_parallel`` leaves of its ``gpus``.
    tensor_parallel: int = 1
    #: Groups of such GPUs that have a part of the layers each, one after the other.
    pipeline_parallel: int = 1
    #: Leave out compilation and CUDA graphs: a faster start, slower steps. Always so on a CPU.
    eager: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel * self.pipeline_parallel
