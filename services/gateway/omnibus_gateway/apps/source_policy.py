"""Validation of app sources: the settings of this gateway decide what is allowed.

    {"source": {"module": "company.poems"}}                          installed with the gateway, or from a plugin
    {"source": {"module": "poems", "directory": "team/poems"}}       below OMNIBUS_GATEWAY_APPS_DIR
    {"source": {"upload": "async def serve(request): ...", "name": "poems"}}

The gateway does not import or read the code: the worker does, in a separate process.
"""

import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from omnibus.app.module_loader import DIRECTORY, IMPORT, UPLOAD
from omnibus.app_record import AppSource
from omnibus.errors import BadRequest, Forbidden
from omnibus.settings import GatewaySettings
from omnibus_gateway.apps.response_schemas import AppRequest, AppSourceRequest

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
#: Name of a module, or of a plugin's app.
_INSTALLED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_MODULE_NAME_CHARS = 200  # characters of a module's name


class SubmittedSource(NamedTuple):
    """Source, with its text if it was uploaded."""

    source: AppSource
    text: str = ""


_decode = msgspec.json.Decoder(AppRequest).decode


def parse_request(body: bytes) -> AppRequest:
    """Parse the body of a registration or an update. Raises ``BadRequest``."""
    try:
        return _decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise BadRequest(f"Invalid request: {error}", param="canary" if "canary" in str(error) else "source") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None


def parse_source(request: AppRequest, settings: GatewaySettings) -> SubmittedSource | None:
    """Return the source in ``request``, or None. Raises ``BadRequest`` and ``Forbidden``."""
    source = request.source
    if source is None:
        return None
    if source.upload is not None:
        return _parse_upload(source, settings)
    if source.name is not None:
        raise BadRequest("omit source.name: only uploads need it, modules contain the name", param="source.name")
    if source.directory is not None:
        module = _check_name(source.module, "module", _MODULE)
        return SubmittedSource(AppSource(DIRECTORY, module, str(_resolve_directory(source.directory, settings))))
    return SubmittedSource(AppSource(IMPORT, _check_name(source.module, "module", _INSTALLED)))


def check_allowed(source: AppSource, settings: GatewaySettings) -> None:
    """Raise ``Forbidden`` if the settings of this gateway do not allow ``source``."""
    if source.kind == UPLOAD and not settings.app_uploads:
        raise Forbidden("uploaded apps are disabled here: set OMNIBUS_GATEWAY_APP_UPLOADS=1")
    if source.kind == DIRECTORY:
        _resolve_directory(source.root, settings)


def relative_directory(source: AppSource, settings: GatewaySettings) -> str:
    """Return the directory of ``source`` as a client names it; empty if it is not allowed."""
    root = Path(settings.apps_dir).resolve() if settings.apps_dir else None
    inside = root is not None and Path(source.root).is_relative_to(root)
    return str(Path(source.root).relative_to(root)) if root is not None and inside else ""


def _parse_upload(source: AppSourceRequest, settings: GatewaySettings) -> SubmittedSource:
    if not settings.app_uploads:
        raise Forbidden("uploads are disabled here: set OMNIBUS_GATEWAY_APP_UPLOADS=1, or register a module")
    if source.module is not None or source.directory is not None:
        raise BadRequest("an upload must have a name, without module and directory", param="source")
    if not source.upload or not source.upload.strip():
        raise BadRequest("the uploaded text is empty", param="source.upload")
    return SubmittedSource(AppSource(UPLOAD, _check_name(source.name, "name", _MODULE)), source.upload)


def _check_name(name: str | None, field: str, pattern: re.Pattern[str]) -> str:
    if not name:
        raise BadRequest(f"Missing required parameter: 'source.{field}'.", param=f"source.{field}")
    if len(name) > _MAX_MODULE_NAME_CHARS or not pattern.fullmatch(name):
        raise BadRequest(f"{name[:80]!r} is not the name of a Python module", param=f"source.{field}")
    return name


def _resolve_directory(directory: str, settings: GatewaySettings) -> Path:
    """Resolve ``directory``, absolute or relative to the apps' directory. Raises ``Forbidden`` outside of it."""
    if not settings.apps_dir:
        raise Forbidden("apps from directories are disabled here: set OMNIBUS_GATEWAY_APPS_DIR")
    root = Path(settings.apps_dir).resolve()
    try:
        path = (root / directory).resolve()
        is_directory = path.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, or a cycle of links
        path, is_directory = root, False
    if not path.is_relative_to(root):
        raise Forbidden(f"{directory[:80]!r} is not below OMNIBUS_GATEWAY_APPS_DIR", param="source.directory")
    if not is_directory:
        raise BadRequest(f"there is no directory {directory[:80]!r} in the apps' directory", param="source.directory")
    return path
