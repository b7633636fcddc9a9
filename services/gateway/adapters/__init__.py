"""LoRA adapters that are loaded and unloaded while the system serves."""
