"""Trained models of packages, and the apps on them."""

import json
import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from omnibus.checkpoints.packaged import INSTALL_ALL, PACKAGED, find_packaged, require_packaged
from omnibus.environment import count_processors
from omnibus.errors import NotFound

#: Modules of the apps, each with a model of its name.
REAL_APPS = ("omnibus_real.apps.assistant", "omnibus_real.apps.receipt", "omnibus_real.apps.search")
#: Models of the plan that the apps call.
REAL_MODELS = ("smollm2", "minilm")
#: File with the profile of the apps' components, in the current directory.
REAL_PROFILE = "apps.profile.json"
#: Tokens of a prompt and its answer, and requests at a time: their cache takes memory from the start.
_CONTEXT, _BATCH = 2048, 4
_THREADS = "OMNIBUS_EXECUTOR_THREADS"
#: Seconds that gateways wait for executors of an app: by a plan, they load all components again on the same cores.
_READY, _READY_SECONDS = "OMNIBUS_GATEWAY_APP_READY", 180
#: Libraries of the engines, by module and by name.
_LIBRARIES = {"xllamacpp": "xllamacpp", "faster_whisper": "faster-whisper", "onnxruntime": "onnxruntime"}


def require_real_set() -> None:
    """Raise ``NotFound`` with the remedy if weights or engines are not installed."""
    require_packaged(PACKAGED)
    if missing := [name for module, name in _LIBRARIES.items() if find_spec(module) is None]:
        raise NotFound(
            f"{', '.join(missing)}: not installed. Run `{INSTALL_ALL}` in a clone, or install the extra real"
        )


def real_models(names: Iterable[str] = REAL_MODELS, profile: str = "") -> str:
    """Return declarations of models among ``REAL_MODELS``. Apps bring the other components.

    With the file ``profile``, the planner decides which components share a process. Each place has the processors of
    one engine. Raises ``NotFound``.
    """
    llm = {"components": ["thinker"], "service": "llm", "engine": "omnibus_engines:llama_cpp"}
    models: dict[str, dict[str, Any]] = {
        "smollm2": {"family": "causal_lm", "context": _CONTEXT, "options": {"L": llm}},
        "minilm": {"family": "sentence_encoder"},
    }
    declarations: dict[str, Any] = {
        "models": {name: {**models[name], "checkpoint": str(find_packaged(name))} for name in names}
    }
    if profile:
        places = max(1, count_processors() // _engine_threads())
        declarations |= {"gpus": {"cpu": {"count": places}}, "apps": {"profile": profile}}
    return json.dumps(declarations)


def _engine_threads() -> int:
    """Return the threads of an engine, half of the processors unless the environment sets them."""
    return int(os.environ.get(_THREADS) or 0) or max(1, count_processors() // 2)


def real_settings() -> dict[str, str]:
    """Return settings of executors and gateways, without those that the environment has.

    An engine has half of the processors: threads of llama.cpp wait for one another, so busy engines beside it slow all
    of them down.
    """
    settings = {"OMNIBUS_EXECUTOR_BATCH": _BATCH, _THREADS: _engine_threads(), _READY: _READY_SECONDS}
    return {name: str(value) for name, value in settings.items() if name not in os.environ}
