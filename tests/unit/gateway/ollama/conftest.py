"""Gateways for tests of Ollama's API, those of messages."""

from tests.unit.gateway.anthropic.conftest import caller, home, open_gateway, tool_gateway

__all__ = ["caller", "home", "open_gateway", "tool_gateway"]
