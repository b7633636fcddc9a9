"""Language models in GGUF files that llama.cpp computes on a CPU."""
