"""Decoders alone, without a vision part."""
