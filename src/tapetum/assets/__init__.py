"""Where the bundled model and its sample pictures lie on disk.

Owns two paths and nothing else: reading the files is the business of those who need them.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent

MODEL_DIR = _HERE / "tapetum-mini"  # a Qwen2-VL checkpoint in the Hugging Face format
SAMPLES_DIR = _HERE / "samples"  # pictures, and samples.json with a question and the right answer to each
