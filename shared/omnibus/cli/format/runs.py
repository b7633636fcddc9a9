"""Runs of ``omnibus up`` as text."""

from omnibus.up.runs import RunState
from omnibus.urls import redact_url


def address_text(state: RunState, token: str) -> str:
    """Return the addresses of a run that is up. ``token`` is the text to show for its admin token."""
    scheme = state.gateway_url.partition("://")[0]
    urls = [f"{scheme}://127.0.0.1:{port}" for name, port in state.ports.items() if name.startswith("gateway")]
    other_urls = f"   also: {' '.join(f'{url}/v1' for url in urls[1:])}" if urls[1:] else ""
    return (
        f"Omnibus is up: {urls[0]}/v1{other_urls}   routes: {urls[0]}/openapi.json\n"
        f"Console: {urls[0]}/console/#token={token}\n"
        f'Bus: {redact_url(state.nats_url)}   for `nats` and other tools: eval "$(omnibus env)"'
    )
