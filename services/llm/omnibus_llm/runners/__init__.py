"""Runners of the language-model components: thinker, prefill, decode, talker."""
