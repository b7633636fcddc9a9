"""Web pages of other origins that a setting admits to this gateway."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings

#: Headers of responses that pages may read.
_EXPOSED_HEADERS = (
    "retry-after",
    "x-should-retry",
    "x-request-id",
    "x-omnibus-path",
    "x-omnibus-epoch",
    "x-omnibus-continue",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
)
#: Seconds for which a browser caches a preflight response.
_PREFLIGHT_SECONDS = 600


def cors_origins(settings: GatewaySettings) -> tuple[str, ...]:
    """Return the origins in ``settings``, ``*`` for all. Raises ``BadRequest`` for ``*`` without API keys."""
    origins = tuple(each.strip().rstrip("/").lower() for each in settings.cors_origins.split(",") if each.strip())
    if "*" in origins and not (settings.keys or settings.keys_file):
        raise BadRequest(
            "OMNIBUS_GATEWAY_CORS_ORIGINS=* would let every web page use this gateway: list origins, or require API "
            "keys with OMNIBUS_GATEWAY_KEYS=true"
        )
    return origins


def allow_origins(application: ASGIApp, settings: GatewaySettings) -> ASGIApp:
    """Open ``application`` to pages of the origins in ``settings``, if any."""
    origins = cors_origins(settings)
    if not origins:
        return application
    return CORSMiddleware(
        application,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=_EXPOSED_HEADERS,
        max_age=_PREFLIGHT_SECONDS,
    )
