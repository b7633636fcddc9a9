"""Anthropic's Messages API: a dialect of chats."""
