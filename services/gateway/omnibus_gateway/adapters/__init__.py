"""LoRA adapters that operators load and unload while the system serves."""
