"""The processor files of a checkpoint: where the settings of pictures and clips are, and how all families read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from tapetum.core.errors import CheckpointError, ConfigError
from tapetum.core.files import ConfigReader, read_json
from tapetum.core.media import MediaKind

JOINT = "processor_config.json"
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation of each colour
_FILE_NAMES: Mapping[MediaKind, tuple[str, ...]] = {
    "image": ("preprocessor_config.json",),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json"),
}
EVERY_STEP: Mapping[str, object] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "rescale_factor": 1 / 255,
}
IGNORED_KEYS = (  # names of classes, ways of returning, and whether frames are chosen: of a file they always are
    "image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class", "auto_map",
    "crop_size", "data_format", "input_data_format", "default_to_square", "device", "disable_grouping",
    "return_tensors", "return_metadata", "pad_size", "size_divisor", "video_metadata", "image_seq_length",
    "do_sample_frames", "fps", "num_frames", "min_frames", "max_frames", "max_video_tokens",
)  # fmt: skip


def read_settings(directory: Path, kind: MediaKind = "image") -> ConfigReader:
    """The settings of a kind, found in the order of transformers: the joint file, then one file per kind.

    A checkpoint without a file for clips uses the picture's settings for them.
    """
    joint = ConfigReader(read_json(directory / JOINT) or {}, JOINT)
    if joint.has(f"{kind}_processor"):
        return joint.section(f"{kind}_processor")
    for name in _FILE_NAMES[kind]:
        values = read_json(directory / name)
        if values is not None:
            return ConfigReader(values, name)
    raise CheckpointError(f"{directory} has no {_FILE_NAMES[kind][-1]}; copy it from the checkpoint's source")


def check_switches(file: ConfigReader, required: Mapping[str, object]) -> None:
    """Every switch is as the code has it, where the file says anything."""
    for key, only in required.items():
        file.only(key, only)


def read_normalisation(file: ConfigReader, usual: Normalisation) -> Normalisation:
    """Mean and deviation, one number a colour; `usual` are those of the family's class."""
    mean, deviation = file.numbers("image_mean", usual[0]), file.numbers("image_std", usual[1])
    if len(mean) != len(deviation) or not all(deviation):
        raise ConfigError(
            f"{file.name}: image_mean is {mean}, image_std {deviation}; must be one number a colour, none of the "
            "latter 0"
        )
    return mean, deviation


def read_resample(file: ConfigReader, usual: Image.Resampling) -> Image.Resampling:
    """The filter that scales pictures; files give its number in Pillow."""
    number = file.integer("resample", usual, low=0)
    if number not in set(Image.Resampling):
        known = ", ".join(f"{item.value} ({item.name.lower()})" for item in sorted(Image.Resampling))
        raise ConfigError(f"{file.name}: resample is {number}, must be one of {known}")
    return Image.Resampling(number)


def token_id(directory: Path, text: str) -> int:
    """Of a token that the tokenizer adds to its words, for a config.json that does not say it."""
    declared = (read_json(directory / "tokenizer_config.json") or {}).get("added_tokens_decoder")
    pairs = list(declared.items()) if isinstance(declared, dict) else []
    if not pairs:  # not all name them there; the other file is large
        added = (read_json(directory / "tokenizer.json") or {}).get("added_tokens")
        tokens = added if isinstance(added, list) else []
        pairs = [(token.get("id"), token) for token in tokens if isinstance(token, dict)]
    for number, token in pairs:
        if isinstance(token, dict) and token.get("content") == text and str(number).isdecimal():
            return int(str(number))
    raise CheckpointError(
        f"{directory}: neither tokenizer_config.json nor tokenizer.json has the token {text}, which stands for what "
        "the model sees; fetch the files of the tokenizer again"
    )
