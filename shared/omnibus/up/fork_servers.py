"""Fork servers of a run: one for services, one for executors, whose libraries are far larger."""

from collections.abc import Mapping, Sequence
from functools import partial

from omnibus.process.spec import SHARED, ProcessSpec, python_command
from omnibus.up.health import fork_server_answers, wait_for_socket

#: Names of their processes, and of their sockets in the directory of the run: paths of sockets must be short.
SERVICES, EXECUTORS = "service-fork-server", "fork-server"
SERVICES_SOCKET, EXECUTORS_SOCKET = "services.sock", "fork-server.sock"
_READY_SECONDS = 120.0  # seconds for the imports
#: Modules that are imported once for all services, and once for all executors.
SERVICE_MODULES = (
    "omnibus.service",
    "omnibus_gateway.service",
    "omnibus_planner.service",
    "omnibus_sidecar.service",
)
EXECUTOR_MODULES = (
    "omnibus_models.preimport",
    "omnibus.executor.service",
    "omnibus.service",
    "omnibus_engines",
    "omnibus_encoder.media_encoder",
    "omnibus_encoder.text_engines",
    "omnibus_generator.denoiser",
    "omnibus_generator.vae_decoder",
    "omnibus_generator.vocoder",
    "omnibus_llm.runners.thinker",
    "omnibus_llm.runners.talker",
)


def executor_modules(declarations: str) -> tuple[str, ...]:
    """Return the modules of executors of the models that are declared in a file. Small models are loaded too."""
    return (f"omnibus_engines.preload:prepare_models:{declarations}", *EXECUTOR_MODULES[1:])


def fork_server_spec(name: str, socket: str, modules: Sequence[str], env: Mapping[str, str]) -> ProcessSpec:
    """Return the process of a fork server that imports ``modules``. It listens at ``socket``."""
    return ProcessSpec(
        name,
        python_command("omnibus.up.fork_server", socket, *modules),
        # By default, the libraries of numpy and scipy start threads on import, and a search for GPUs starts their
        # driver, which no executor could use after that.
        env={**env, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        cwd=SHARED,
        ready=lambda: wait_for_socket(socket),
        ready_within=_READY_SECONDS,
        alive=partial(fork_server_answers, socket),
    )
