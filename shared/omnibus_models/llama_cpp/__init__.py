"""Language models in GGUF files, whose layers llama.cpp computes on the CPU."""
