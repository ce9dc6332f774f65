"""Idefics3 and SmolVLM."""
