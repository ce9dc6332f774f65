"""LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision."""
