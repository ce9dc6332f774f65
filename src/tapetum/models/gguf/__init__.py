"""Checkpoints in one GGUF file, as llama.cpp writes them. No torch: the front reads tokenizer and config here too."""
