"""Conversations by voice over one WebSocket each, for every model that chats."""
