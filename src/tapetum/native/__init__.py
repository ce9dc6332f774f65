"""Kernels in C++ behind a plain C interface; a leaf that knows nothing of models, requests or torch."""
