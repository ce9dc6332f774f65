"""What config.json and the processor files of LLaVA checkpoints say about pictures and clips.

Sizes are (width, height) here and (height, width) in the files.
"""

from __future__ import annotations

from itertools import product

from PIL import Image

from tapetum.core.errors import ConfigError
from tapetum.core.files import ConfigReader
from tapetum.core.media import MediaKind
from tapetum.processing.anyres import Size
from tapetum.processing.settings import Normalisation, check_switches, read_normalisation, read_resample
from tapetum.processing.tiles import TileShape

ONE_TILE, ONE_VISION = "llava", "llava_onevision"  # model types; the third is llava_next
_FIELDS = "image_grid_pinpoints"
NOT_ASKED = ("aspect_ratio_setting", "do_center_crop", "do_pad", _FIELDS)  # where it does not matter
_USUAL_FIELDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))  # rows, columns of tiles, in LLaVA-NeXT
_LARGEST_FIELD = 6  # tiles of a side, in LLaVA-OneVision: all smaller ones are there too
_REQUIRED_VALUES = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "rescale_factor": 1 / 255,
}
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def read_shape(reader: ConfigReader, file: ConfigReader) -> TileShape:
    vision = reader.section("vision_config")
    return TileShape(
        tile_size=vision.side("image_size"), patch_size=vision.side("patch_size"), resample=_filter(file)
    )


def read_crop(reader: ConfigReader, file: ConfigReader) -> int | None:
    """The shorter side of a picture whose middle is the tile, None where it is stretched over the tile.

    The size that the file says must be that of the model's tiles.
    """
    size, tile = file.section("size"), reader.section("vision_config").side("image_size")
    is_stretched = size.has("height")
    shortest = None if is_stretched else size.integer("shortest_edge")
    if not is_stretched:
        file.only("do_center_crop", True)
    used = size if is_stretched else file.section("crop_size")
    found = used.integer("width", tile), used.integer("height", tile)
    if found != (tile, tile):
        raise ConfigError(
            f"{used.name}: pictures are {found[0]}x{found[1]}, but those of config.json {tile}x{tile}; "
            "copy both files from one checkpoint"
        )
    return shortest


def check_files(reader: ConfigReader, pictures: ConfigReader, clips: ConfigReader, *, is_tiled: bool) -> None:
    """The switches are as the code has them, and frames go through the tower as pictures do."""
    for file in (pictures, clips):
        check_switches(file, _REQUIRED_VALUES if is_tiled else {**_REQUIRED_VALUES, "do_pad": False})
    wanted, found = (
        (read_crop(reader, file), _filter(file), read_colours(file)) for file in (pictures, clips)
    )
    if wanted != found:
        raise ConfigError(
            f"{clips.name}: size, resample, image_mean and image_std are not those of {pictures.name}; make them equal"
        )


def read_fields(reader: ConfigReader, file: ConfigReader, *, is_one_vision: bool) -> tuple[Size, ...]:
    """In pixels; the processor file goes before config.json."""
    named = file if file.has(_FIELDS) else reader
    tile, sides = reader.section("vision_config").side("image_size"), range(1, _LARGEST_FIELD + 1)
    usual = tuple(product(sides, sides)) if is_one_vision else _USUAL_FIELDS
    fields = named.pairs(_FIELDS, tuple((rows * tile, columns * tile) for rows, columns in usual))
    for height, width in fields:
        if min(height, width) < tile or height % tile or width % tile:
            raise ConfigError(
                f"{named.name}: {_FIELDS} has {[height, width]}, which are no whole tiles of {tile} pixels; "
                "correct the list"
            )
    return tuple((width, height) for height, width in fields)


def read_colours(file: ConfigReader) -> Normalisation:
    """What the patch embedding is folded with."""
    is_siglip = file.word("image_processor_type", "").startswith("Siglip")
    return read_normalisation(file, _HALF if is_siglip else _CLIP)


def read_tokens(reader: ConfigReader, *, is_one_vision: bool) -> dict[MediaKind, int]:
    usual: dict[MediaKind, int] = {"image": 151646, "video": 151647} if is_one_vision else {"image": 32000}
    return {
        kind: reader.integer(f"{kind}_token_id", reader.integer(f"{kind}_token_index", number, low=0), low=0)
        for kind, number in usual.items()
    }


def read_most_cells(reader: ConfigReader) -> int:
    """How many patches of a field stay as they are, by a name such as anyres_max_9 for those of nine tiles."""
    name, vision = reader.word("vision_aspect_ratio", "anyres_max_9"), reader.section("vision_config")
    count = name.removeprefix("anyres_max_")
    if count == name or not count.isdecimal() or not int(count):
        raise ConfigError(
            f"{reader.name}: vision_aspect_ratio is {name!r}, must be like 'anyres_max_9'; use another checkpoint"
        )
    side = vision.side("image_size") // vision.side("patch_size")
    return int(count) * side**2


def _filter(file: ConfigReader) -> Image.Resampling:
    return read_resample(file, Image.Resampling.BICUBIC)
