"""The numbers of the bundled model that tests speak of, read from its own files: nothing here changes with it."""

from __future__ import annotations

import json
from math import ceil, sqrt

from tapetum.assets import MODEL_DIR

CONFIG = json.loads((MODEL_DIR / "config.json").read_text())
EOS, END_OF_TEXT = CONFIG["eos_token_id"], CONFIG["bos_token_id"]
IMAGE_TOKEN, VIDEO_TOKEN = CONFIG["image_token_id"], CONFIG["video_token_id"]
VOCAB_SIZE = CONFIG["vocab_size"]
MAX_MODEL_LEN = CONFIG["max_position_embeddings"]
KV_VALUES = (  # of a token: keys and values of all layers
    2 * CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"]
) * (CONFIG["hidden_size"] // CONFIG["num_attention_heads"])

CELL = 28  # pixels of a visual token, per side
_BOUNDS = json.loads((MODEL_DIR / "preprocessor_config.json").read_text())
MAX_PIXELS = _BOUNDS["max_pixels"]
LEAST_TOKENS = ceil(sqrt(_BOUNDS["min_pixels"]) / CELL) ** 2  # of a small square
