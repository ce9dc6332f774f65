"""Gemma 3 with pictures."""
