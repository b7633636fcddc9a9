"""Structured answers: the wire form of tool calls, and grammars that constrain answers."""
