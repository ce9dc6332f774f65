"""Tensor operations that know nothing of requests: a plain reference, a fast torch path, and the table between."""
