"""Bookkeeping of KV blocks, reusable prefixes and encoded pictures; no tensors."""
