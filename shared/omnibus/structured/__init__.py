"""Structured answers: calls of tools as they travel, and grammars of what an answer may be."""
