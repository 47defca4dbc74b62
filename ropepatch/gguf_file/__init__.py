"""GGUF files: what their header says, what llama.cpp makes of it, and other words in its place."""
