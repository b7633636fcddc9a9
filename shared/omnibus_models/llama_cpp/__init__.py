"""The C interface of llama.cpp, and its models in memory."""
