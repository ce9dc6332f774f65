"""From the bytes of a file to one canonical picture: upright, RGB, uint8.

`read_size` looks at the header alone and is where limits are checked; `decode` spends memory only after it. Files go
straight to the one Pillow plugin that their first bytes name, so nothing global in Pillow is read or changed and its
own size warnings stay out of the way (it may still warn about damaged metadata). A parser or decoder asks at each of
its reads whether to go on, since a small file may keep one busy for hours. Conversions go by bands of rows: what they
need beside source and result stays small.

How unlike kinds become RGB:
- transparency (alpha, palette or one colour) is laid over `MediaConfig.alpha_ground`;
- 16-bit grey and colour keep their high byte;
- 32-bit grey is read as 16-bit where all values fit, floats as 0..1 where all fit; else min..max is stretched;
- CMYK, YCCK and YCbCr convert without a colour profile, as the reference processors do;
- an animation gives its first frame; a file of several pages its first page;
- the EXIF (or XMP) orientation is applied where it stands before the pixel data.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaTooLarge
from tapetum.media.deadlines import GivenUp, GoOn

_BAND_PIXELS = 2**22
_JPEG_READ_BYTES = 16 * 1024  # at a time, instead of 64 KiB: so much can hold hundreds of scans of all pixels
_JP2_BOX = b"\x00\x00\x00\x0cjP  \r\n\x87\n"
# first bytes (after skipping `offset`), name in messages, plugin
_FORMATS: tuple[tuple[int, bytes, str, type[ImageFile.ImageFile]], ...] = (
    (0, b"\xff\xd8\xff", "JPEG", JpegImageFile),
    (0, b"\x89PNG\r\n\x1a\n", "PNG", PngImageFile),
    (8, b"WEBPVP8", "WebP", WebPImageFile),
    (0, b"GIF87a", "GIF", GifImageFile),
    (0, b"GIF89a", "GIF", GifImageFile),
    (0, b"BM", "BMP", BmpImageFile),
    (0, b"II*\x00", "TIFF", TiffImageFile),
    (0, b"MM\x00*", "TIFF", TiffImageFile),
    (0, b"II+\x00", "TIFF", TiffImageFile),
    (0, b"MM\x00+", "TIFF", TiffImageFile),
    (4, b"ftypavif", "AVIF", AvifImageFile),
    (4, b"ftypavis", "AVIF", AvifImageFile),
    (4, b"ftypmif1", "AVIF", AvifImageFile),
    (4, b"ftypmsf1", "AVIF", AvifImageFile),
    (0, _JP2_BOX, "JPEG 2000", Jpeg2KImageFile),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000", Jpeg2KImageFile),
)
FORMAT_NAMES = ", ".join(dict.fromkeys(name for _, _, name, _ in _FORMATS))

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUARTER_TURNS = (5, 6, 7, 8)


def _always() -> None:
    """Go on."""


def read_size(data: bytes, config: MediaConfig, go_on: GoOn = _always) -> tuple[int, int]:
    """Upright (width, height) of a file, from its header; raises MediaError for what `decode` would refuse."""
    picture, _ = _open(data, config, go_on)
    with picture:
        return _upright_size(picture)


def decode(
    data: bytes, config: MediaConfig, go_on: GoOn = _always, used: tuple[int, int] | None = None
) -> Image.Image:
    """The canonical picture of a file; that of a JPEG may be smaller, but not below `used`, where that is given."""
    picture, name = _open(data, config, go_on)
    with picture:
        if used is not None and isinstance(picture, JpegImageFile):
            is_turned = _orientation(picture) in _QUARTER_TURNS
            picture.draft(None, (used[1], used[0]) if is_turned else used)
        expected = _upright_size(picture)
        upright = _canonical(picture, name, config)
        if upright.size != expected:
            raise MediaError(
                f"{name} picture is {upright.width}x{upright.height}, but its header says "
                f"{expected[0]}x{expected[1]}; save it again"
            )
        return upright


def is_picture(data: bytes) -> bool:
    """Whether a file begins as a picture does that can be decoded."""
    return any(data[offset : offset + len(magic)] == magic for offset, magic, _, _ in _FORMATS)


def adopt_picture(picture: Image.Image, config: MediaConfig) -> Image.Image:
    """The canonical picture of one that the caller opened; always a copy."""
    check_pixels(picture.size, config)
    try:
        own = picture.copy()
    except Exception as error:  # a lazily opened file is decoded here
        raise MediaError(f"PIL picture cannot be read: {_reason(error)}") from error
    return _canonical(own, f"PIL {picture.mode}", config)


def adopt_array(array: NDArray[np.generic], config: MediaConfig) -> Image.Image:
    """The canonical picture of a uint8 array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]; always a copy."""
    if array.dtype != np.uint8:
        raise MediaError(f"array has dtype {array.dtype}, must be uint8 with values 0 to 255")
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise MediaError(f"array has shape {list(array.shape)}, must be [H, W] or [H, W, 1, 3 or 4]")
    check_pixels((array.shape[1], array.shape[0]), config)
    flat = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    return to_rgb(Image.fromarray(np.array(flat)), config)


def check_bytes(count: int, config: MediaConfig) -> None:
    if count > config.max_bytes:
        raise MediaTooLarge(
            f"picture, clip or document has {count} bytes, limit {config.max_bytes}; "
            "send a smaller file or raise --media-max-mb"
        )


def check_pixels(size: tuple[int, int], config: MediaConfig) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise MediaError(f"picture is {width}x{height} pixels; both sides must be at least 1")
    if width * height > config.max_pixels:
        raise MediaTooLarge(
            f"picture is {width}x{height} = {width * height} pixels, limit {config.max_pixels}; "
            "scale it down or raise MediaConfig.max_pixels"
        )


class _WatchedBytes(BytesIO):
    def __init__(self, data: bytes, go_on: GoOn) -> None:
        super().__init__(data)
        self._go_on = go_on

    def read(self, size: int | None = -1, /) -> bytes:
        self._go_on()
        return super().read(size)


def _open(data: bytes, config: MediaConfig, go_on: GoOn) -> tuple[ImageFile.ImageFile, str]:
    """The file's header, parsed and within limits, and the name of its format."""
    check_bytes(len(data), config)
    name, plugin = _format(data)
    if plugin is WebPImageFile:
        check_pixels(_webp_size(data), config)
    try:
        picture = plugin(_WatchedBytes(data, go_on))
    except GivenUp:
        raise
    except Exception as error:  # a parser of hostile bytes may raise anything
        raise MediaError(f"{name} picture has a broken header: {_reason(error)}") from error
    check_pixels(picture.size, config)
    if isinstance(picture, JpegImageFile):
        picture.decodermaxblock = _JPEG_READ_BYTES
    return picture, name


def _format(data: bytes) -> tuple[str, type[ImageFile.ImageFile]]:
    for offset, magic, name, plugin in _FORMATS:
        if data[offset : offset + len(magic)] == magic:
            return name, plugin
    start = f"starts with {data[:12]!r}" if data else "is empty"
    raise MediaError(f"picture file {start}; supported formats are {FORMAT_NAMES}")


def _webp_size(data: bytes) -> tuple[int, int]:
    """The canvas size of a WebP file: its plugin allocates the canvas as it opens, so it is checked before.

    Chunk layouts as in the WebP container specification; (1, 1) where the header is too short to tell.
    """
    kind, body = data[12:16], data[20:30]
    if kind == b"VP8X" and len(body) == 10:
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L" and len(body) >= 5:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return 1, 1  # plain VP8: at most 16383 x 16383, and no canvas beyond that of the frame


def _upright_size(picture: Image.Image) -> tuple[int, int]:
    width, height = picture.size
    return (height, width) if _orientation(picture) in _QUARTER_TURNS else (width, height)


def _orientation(picture: Image.Image) -> int:
    """EXIF orientation 1 to 8, from metadata already read; 1 where there is none or it is damaged.

    TIFF files turn themselves. The base class's `getexif` is called because PNG's own decodes the pixels first.
    """
    if isinstance(picture, TiffImageFile):
        return 1
    try:
        value = Image.Image.getexif(picture).get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged metadata must not cost the picture
        return 1
    return value if isinstance(value, int) else 1


def _canonical(picture: Image.Image, name: str, config: MediaConfig) -> Image.Image:
    orientation = _orientation(picture)
    try:
        picture.load()
        rgb = to_rgb(picture, config)
    except GivenUp:
        raise
    except Exception as error:  # a decoder of hostile bytes may raise anything
        raise MediaError(f"{name} picture cannot be decoded: {_reason(error)}") from error
    method = _UPRIGHT.get(orientation)
    return rgb if method is None else rgb.transpose(method)


def to_rgb(picture: Image.Image, config: MediaConfig) -> Image.Image:
    """A decoded picture by the rules of the module docstring."""
    if picture.mode.startswith("I") or picture.mode == "F":
        return Image.fromarray(_grey_levels(np.asarray(picture))).convert("RGB")
    if picture.has_transparency_data:
        ground = Image.new("RGB", picture.size, config.alpha_ground)
        for start, end in _bands(picture.size):
            layered = picture.crop((0, start, picture.width, end)).convert("RGBA")
            ground.paste(layered.convert("RGB"), (0, start), mask=layered.getchannel("A"))
        return ground
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _bands(size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """First row and the one after the last of each."""
    width, height = size
    step = max(1, _BAND_PIXELS // width)
    return ((start, min(start + step, height)) for start in range(0, height, step))


def _grey_levels(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Grey of more than 8 bits to uint8, by the rules of the module docstring. Not-a-number is black."""
    height, width = values.shape
    rows = [slice(*band) for band in _bands((width, height))]
    is_whole = values.dtype.kind in "iu"
    bands = (values[row] if is_whole else _finite(values[row]) for row in rows)
    ends = [(float(band.min()), float(band.max())) for band in bands]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    is_16_bit = is_whole and low >= 0 and high <= 65535
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    levels = np.empty(values.shape, np.uint8)
    for row in rows:
        if is_16_bit:
            levels[row] = values[row].astype(np.uint16) >> 8
        else:
            levels[row] = np.rint((_finite(values[row]) - low) / max(high - low, 1e-300) * 255)
    return levels


def _finite(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200] if str(error) else type(error).__name__
