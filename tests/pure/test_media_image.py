"""Bytes -> canonical picture: every kind of file gives the right picture or the right typed error."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import textwrap
import time
import warnings
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaTooLarge
from tapetum.media.deadlines import GivenUp
from tapetum.media.image import adopt_array, adopt_picture, decode, read_size, to_rgb

CONFIG = MediaConfig()
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000")


def picture(width: int = 40, height: int = 25, mode: str = "RGB") -> Image.Image:
    """Smooth in two directions and unlike under every turn."""
    y, x = np.mgrid[:height, :width]
    planes = np.stack([x * 255 // width, y * 255 // height, (x * 3 + y) % 256], axis=-1)
    return Image.fromarray(planes.astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def as_pillow(data: bytes) -> np.ndarray:
    """What Pillow's usual way gives, for files without transparency or depth."""
    return np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB"))


# --- the right picture


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind):
    data = encoded(picture(), kind)
    assert read_size(data, CONFIG) == (40, 25)
    assert np.array_equal(pixels(decode(data, CONFIG)), as_pillow(data))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(), kind, exif=exif)
    upright = as_pillow(data)
    assert upright.shape == ((40, 25, 3) if orientation >= 5 else (25, 40, 3))
    assert read_size(data, CONFIG) == (upright.shape[1], upright.shape[0])
    assert np.array_equal(pixels(decode(data, CONFIG)), upright)


def test_the_size_needs_no_pixels(monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind, share in (("PNG", 0.7), ("JPEG", 0.97), ("GIF", 0.9), ("BMP", 0.1)):
        data = encoded(picture(), kind, exif=exif)
        head = data[: int(len(data) * share)]
        with pytest.raises(MediaError):
            decode(head, CONFIG)
        assert read_size(head, CONFIG) == ((25, 40) if kind in ("PNG", "JPEG") else (40, 25))
    loads: list[object] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: loads.append(self))
    for kind in FORMATS:
        assert read_size(encoded(picture(), kind), CONFIG) == (40, 25)
    assert not loads


@pytest.mark.parametrize(
    ("size", "used", "smallest"),
    [
        ((800, 600), (400, 300), (400, 300)),
        ((800, 600), (401, 300), (800, 600)),  # a half would be too small
        ((801, 601), (140, 112), (201, 151)),
        ((800, 600), (28, 28), (100, 75)),  # an eighth is the least
        ((80, 60), (800, 600), (80, 60)),
    ],
)
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_is_decoded_at_the_scale_that_is_enough(size, used, smallest, orientation, mode):
    exif = Image.Exif()
    exif[274] = orientation
    data = encoded(picture(*size, mode), "JPEG", quality=95, exif=exif)
    turned = slice(None, None, -1) if orientation == 6 else slice(None)
    small = decode(data, CONFIG, used=used[turned])
    assert (small.size, small.mode) == (smallest[turned], "RGB")
    exact = decode(data, CONFIG).resize(used[turned], Image.Resampling.BICUBIC)
    ours = small.resize(used[turned], Image.Resampling.BICUBIC)
    assert np.abs(pixels(ours).astype(int) - pixels(exact)).mean() < 6  # a wrong turn: 80


def test_other_formats_are_decoded_whole():
    data = encoded(picture(80, 60), "PNG")
    assert decode(data, CONFIG, used=(10, 10)).size == (80, 60)


def test_orientation_of_a_picture_the_caller_opened():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(), "JPEG", exif=exif)
    assert np.array_equal(pixels(adopt_picture(Image.open(BytesIO(data)), CONFIG)), as_pillow(data))


@pytest.mark.parametrize(
    "exif", [b"Exif\x00\x00", b"Exif\x00\x00II*\x00\xff\xff\xff\xff", b"Exif\x00\x00nonsense"]
)
@pytest.mark.filterwarnings("ignore")
def test_damaged_metadata_does_not_cost_the_picture(exif):
    data = encoded(picture(), "JPEG", exif=exif)
    assert read_size(data, CONFIG) == (40, 25)
    assert np.array_equal(pixels(decode(data, CONFIG)), as_pillow(encoded(picture(), "JPEG")))


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr"])
def test_modes_without_transparency(mode):
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    data = encoded(picture(mode=mode), kind)
    assert np.array_equal(pixels(decode(data, CONFIG)), as_pillow(data))


def test_inverted_cmyk_of_adobe():
    """A white CMYK picture must come out white, not black."""
    white = Image.new("CMYK", (8, 8), (0, 0, 0, 0))
    data = encoded(white, "JPEG", quality=95)
    assert b"Adobe" in data
    assert pixels(decode(data, CONFIG)).min() > 250


def laid_over(colour: np.ndarray, alpha: np.ndarray, ground: tuple[int, int, int]) -> np.ndarray:
    return np.rint((colour * alpha + np.array(ground) * (255.0 - alpha)) / 255).astype(np.uint8)


@pytest.mark.parametrize("ground", [(255, 255, 255), (10, 200, 30)])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_over_the_ground(mode, ground):
    image = picture(mode=mode)
    image.putalpha(Image.fromarray((np.arange(40 * 25) % 256).astype(np.uint8).reshape(25, 40)))
    expected = laid_over(
        np.asarray(image.convert("RGB"), np.float64), np.asarray(image)[..., -1:].astype(np.float64), ground
    )
    out = decode(encoded(image, "PNG"), MediaConfig(alpha_ground=ground))
    assert np.array_equal(pixels(out), expected)


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palette_with_transparency(kind):
    image = Image.new("P", (4, 2), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 1), 1)
    data = encoded(image, kind, transparency=0)
    out = pixels(decode(data, MediaConfig(alpha_ground=(1, 2, 3))))
    assert out[0, 0].tolist() == [1, 2, 3]
    assert out[1, 1].tolist() == [0, 0, 255]


def test_palette_with_partial_transparency_and_one_clear_colour():
    image = Image.new("P", (2, 1), 0)
    image.putpalette([200, 100, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = pixels(decode(encoded(image, "PNG", transparency=bytes([51, 255])), CONFIG))
    assert out[0].tolist() == [[244, 224, 204], [0, 0, 255]]  # 20 % of the colour over white
    rgb = Image.new("RGB", (2, 1), (9, 9, 9))
    rgb.putpixel((1, 0), (8, 8, 8))
    out = pixels(decode(encoded(rgb, "PNG", transparency=(9, 9, 9)), CONFIG))
    assert out[0].tolist() == [[255, 255, 255], [8, 8, 8]]


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG written by hand: Pillow cannot write 16-bit colour."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_sixteen_bits_keep_the_high_byte():
    values = np.array([0, 255, 256, 32768, 65279, 65535], np.uint16)
    high = [0, 0, 1, 128, 254, 255]
    grey = png(6, 1, 16, 0, b"\0" + values.astype(">u2").tobytes())
    assert pixels(decode(grey, CONFIG))[0, :, 0].tolist() == high
    colour = png(6, 1, 16, 2, b"\0" + np.repeat(values, 3).astype(">u2").tobytes())
    assert np.array_equal(pixels(decode(colour, CONFIG)), pixels(decode(grey, CONFIG)))
    tiff = encoded(Image.fromarray(values[None]), "TIFF")
    assert np.array_equal(pixels(decode(tiff, CONFIG)), pixels(decode(grey, CONFIG)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 256, 65535], np.int32), [0, 1, 255]),  # fits 16 bits
        (np.array([-100, 0, 100], np.int32), [0, 128, 255]),  # stretched
        (np.array([0, 10**9, 2 * 10**9], np.int32), [0, 128, 255]),
        (np.array([0, 100 / 255, 1], np.float32), [0, 100, 255]),  # 0..1
        (np.array([0, 0.25, 0.5], np.float32), [0, 64, 128]),  # not stretched
        (np.array([-1, 0, 1], np.float32), [0, 128, 255]),  # stretched
        (np.array([np.nan, 0, 1], np.float32), [0, 0, 255]),
        (np.array([np.inf, 1, 3], np.float32), [0, 85, 255]),
        (np.array([7, 7, 7], np.int32), [0, 0, 0]),
        (np.array([-7, -7, -7], np.float32), [0, 0, 0]),
    ],
)
def test_integers_and_floats(values, expected):
    data = encoded(Image.fromarray(values[None]), "TIFF")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixels(decode(data, CONFIG))[0, :, 0].tolist() == expected


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "AVIF"])
def test_animation_gives_its_first_frame(kind):
    frames = [Image.new("RGB", (16, 12), colour) for colour in ("red", "lime", "blue")]
    lossless = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50, **lossless)
    assert Image.open(BytesIO(data)).n_frames == 3
    out = pixels(decode(data, CONFIG)).astype(int)
    assert np.abs(out - [255, 0, 0]).max() <= (3 if kind == "AVIF" else 0)


def test_bands_make_no_difference(monkeypatch):
    shaped = picture(23, 17, "RGBA")
    shaped.putalpha(picture(23, 17, "L"))
    palette = picture(23, 17).quantize(16)
    palette.info["transparency"] = bytes(range(0, 256, 16))
    clear = picture(23, 17)
    clear.info["transparency"] = clear.getpixel((3, 4))
    numbers = np.linspace(-7.5, 4000, 23 * 17, dtype=np.float32).reshape(17, 23)
    numbers[2, 3], numbers[11, 5] = np.nan, np.inf
    sources = (
        shaped,
        shaped.convert("LA"),
        palette,
        clear,
        Image.fromarray(numbers),
        Image.fromarray(numbers / 5000),
        Image.fromarray((np.nan_to_num(numbers, posinf=0) * 10).astype(np.int32)),
        Image.fromarray(np.abs(np.nan_to_num(numbers, posinf=0)).astype(np.uint16)),
    )
    whole = [np.asarray(to_rgb(source, CONFIG)) for source in sources]
    for pixels in (1, 60, 391):
        monkeypatch.setattr("tapetum.media.image._BAND_PIXELS", pixels)
        for source, expected in zip(sources, whole, strict=True):
            assert np.array_equal(np.asarray(to_rgb(source, CONFIG)), expected), source.mode


def test_one_pixel_and_a_long_strip():
    assert pixels(decode(encoded(Image.new("RGB", (1, 1), "red"), "PNG"), CONFIG)).tolist() == [[[255, 0, 0]]]
    assert read_size(encoded(picture(400, 2), "PNG"), CONFIG) == (400, 2)


# --- pictures and arrays of the caller


def test_arrays():
    rgb = np.asarray(picture())
    assert np.array_equal(pixels(adopt_array(rgb, CONFIG)), rgb)
    assert np.array_equal(pixels(adopt_array(rgb[::2, ::-1], CONFIG)), rgb[::2, ::-1])
    grey = rgb[..., 0]
    for array in (grey, grey[..., None]):
        assert np.array_equal(pixels(adopt_array(array, CONFIG)), np.repeat(grey[..., None], 3, axis=2))
    clear = np.concatenate([rgb, np.zeros_like(rgb[..., :1])], axis=2)
    assert (pixels(adopt_array(clear, CONFIG)) == 255).all()


def test_what_the_caller_gave_is_copied():
    array = np.zeros((4, 4, 3), np.uint8)
    image = Image.new("RGB", (4, 4))
    copies = [adopt_array(array, CONFIG), adopt_picture(image, CONFIG)]
    array[:] = 9
    image.putpixel((0, 0), (9, 9, 9))
    assert all(pixels(copy).max() == 0 for copy in copies)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 4, 3), np.float32), "float32"),
        (np.zeros((4, 4, 2), np.uint8), r"\[4, 4, 2\]"),
        (np.zeros((3, 4, 4, 3), np.uint8), r"\[3, 4, 4, 3\]"),
        (np.zeros(5, np.uint8), r"\[5\]"),
        (np.zeros((0, 4, 3), np.uint8), "4x0"),
        (np.array([["a"]]), "U1"),
    ],
)
def test_arrays_that_are_refused(array, words):
    with pytest.raises(MediaError, match=words):
        adopt_array(array, CONFIG)


# --- the right error


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_truncated_at_any_length(kind):
    data = encoded(picture(), kind)
    whole = pixels(decode(data, CONFIG))
    for length in {*range(0, len(data), max(1, len(data) // 120)), len(data) - 1, len(data) - 2}:
        try:
            out = decode(data[:length], CONFIG)
        except MediaError as error:
            assert str(error)
        else:  # what is cut off may be padding or a closing mark, never pixels
            assert length >= len(data) - 32
            assert np.array_equal(pixels(out), whole)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\x00", "supported formats are JPEG, PNG"),
        (b"<!DOCTYPE html><html>", "DOCTYPE"),
        (b"hello there, this is text", "hello there"),
        (b"\x89PNG\r\n\x1a\n", "PNG picture has a broken header"),
        (b"\xff\xd8\xff", "JPEG picture has a broken header"),
        (b"GIF89a", "GIF picture has a broken header"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "WebP picture has a broken header"),
        (b"\x00\x00\x00\x1cftypavif" + bytes(40), "AVIF picture has a broken header"),
        (b"%PDF-1.7 ...", "PDF"),
        (b"\x00\x00\x00\x18ftypheic" + bytes(20), "supported formats"),
    ],
)
def test_not_a_picture(data, words):
    for read in (read_size, decode):
        with pytest.raises(MediaError, match=words):
            read(data, CONFIG)


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_sides_of_zero(size):
    bmp = bytearray(encoded(picture(), "BMP"))
    bmp[18:26] = struct.pack("<ii", *size)
    gif = bytearray(encoded(picture(), "GIF"))
    gif[6:10] = struct.pack("<HH", *size)
    for data in (png(*size, 8, 2, b"\0"), bytes(bmp)):
        with pytest.raises(MediaError):
            decode(data, CONFIG)


def test_limits_name_value_and_remedy():
    data = encoded(picture(), "PNG")
    with pytest.raises(MediaTooLarge, match=r"40x25 = 1000 pixels, limit 999; .*max_pixels"):
        read_size(data, MediaConfig(max_pixels=999))
    assert read_size(data, MediaConfig(max_pixels=1000)) == (40, 25)
    with pytest.raises(MediaTooLarge, match=rf"{len(data)} bytes, limit 20; .*--media-max-mb"):
        read_size(data, MediaConfig(max_bytes=20))
    with pytest.raises(MediaTooLarge, match="limit 999"):
        adopt_picture(picture(), MediaConfig(max_pixels=999))
    with pytest.raises(MediaTooLarge, match="limit 999"):
        adopt_array(np.asarray(picture()), MediaConfig(max_pixels=999))


def bombs() -> dict[str, bytes]:
    """Small files whose header announces 196 million pixels or more."""
    side = 40_000
    jpeg = bytearray(encoded(picture(), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    gif = bytearray(encoded(picture(), "GIF"))
    gif[6:10] = struct.pack("<HH", side, side)
    bmp = bytearray(encoded(picture(), "BMP"))
    bmp[18:26] = struct.pack("<ii", side, side)
    tiff = bytearray(encoded(picture(), "TIFF"))
    for tag, value in ((256, 40), (257, 25)):
        entry = struct.pack("<HHII", tag, 4, 1, value)
        assert entry in tiff
        tiff = tiff.replace(entry, struct.pack("<HHII", tag, 4, 1, side))
    webp = bytearray(encoded(picture(), "WEBP", exif=Image.Exif().tobytes()))
    assert webp[12:16] == b"VP8X"
    webp[24:30] = (side - 1).to_bytes(3, "little") * 2
    lossless = bytearray(encoded(picture(), "WEBP", lossless=True))
    assert lossless[12:16] == b"VP8L"
    lossless[21:25] = struct.pack("<I", 0x3FFF | 0x3FFF << 14)
    jp2 = bytearray(encoded(picture(), "JPEG2000", no_jp2=True))
    jp2[8:16] = struct.pack(">II", side, side)
    avif = bytearray(encoded(picture(), "AVIF"))
    at = avif.index(b"ispe") + 8
    avif[at : at + 8] = struct.pack(">II", 14_000, 14_000)  # its decoder has a limit of its own above this
    return {
        "avif": bytes(avif),
        "png": png(side, side, 8, 2, b"\0"),
        "jpeg": bytes(jpeg),
        "gif": bytes(gif),
        "bmp": bytes(bmp),
        "tiff": bytes(tiff),
        "webp": bytes(webp),
        "webp lossless": bytes(lossless),
        "jpeg 2000": bytes(jp2),
    }


def test_bombs_are_refused_without_memory():
    """In a process that may take 256 MiB more than it has: an attempt to allocate would fail in another way."""
    script = """
        import resource, sys
        from tapetum.core.config import MediaConfig
        from tapetum.core.errors import MediaTooLarge
        from tapetum.media.image import decode, read_size
        from tests.pure.test_media_image import bombs
        files = bombs()
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
        for name, data in files.items():
            for read in (read_size, decode):
                try:
                    read(data, MediaConfig())
                except MediaTooLarge as error:
                    assert "pixels" in str(error), error
                else:
                    sys.exit(f"{name} was accepted")
        print(len(files))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "9"), done.stderr


def test_large_but_allowed_pictures_raise_no_warning():
    """Pillow's own size check would warn from 89 million pixels on."""
    data = png(30_000, 4_000, 8, 0, b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_size(data, CONFIG) == (30_000, 4_000)


def slow_jpeg(side: int, num_scans: int) -> bytes:
    """A small progressive file whose scans each go over every block and change nothing."""

    def segment(marker: int, data: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data

    num_blocks = (side // 8) ** 2
    full, rest = divmod(num_blocks, 32767)  # runs of blocks without coefficients
    bits = ("0" + "1" * 14) * full + "10" * rest
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return b"".join(
        (
            b"\xff\xd8",
            segment(0xDB, b"\0" + b"\1" * 64),
            segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0"),
            segment(0xC4, b"\0" + bytes([1] + [0] * 15) + b"\0"),
            segment(0xC4, b"\x10" + bytes([1, 1] + [0] * 14) + b"\xe0\0"),
            segment(0xDA, b"\1\1\0\0\0\0") + bytes(num_blocks // 8 + 1),
            *[segment(0xDA, b"\1\1\0\1\x3f\0") + scan] * num_scans,
            b"\xff\xd9",
        )
    )


def slow_files() -> dict[str, bytes]:
    many = struct.pack(">I", 0) + b"teSt" + struct.pack(">I", zlib.crc32(b"teSt"))
    plain = png(8, 8, 8, 0, b"\0" * 72)
    start, end = plain[:33], plain[33:]  # around the end of the first chunk
    return {"scans of JPEG": slow_jpeg(4000, 3000), "chunks of PNG": start + many * 20_000 + end}


@pytest.mark.parametrize("name", slow_files())
def test_a_file_that_keeps_a_decoder_busy_is_given_up(name):
    """Each asks soon and often."""
    calls = 0

    def go_on() -> None:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise GivenUp

    data = slow_files()[name]
    started_s = time.monotonic()
    with pytest.raises(GivenUp):
        read_size(data, CONFIG, go_on)
        decode(data, CONFIG, go_on)
    assert time.monotonic() - started_s < 2


def test_memory_of_a_conversion_is_that_of_its_source_and_its_result():
    script = """
        import resource
        from tapetum.core.config import MediaConfig
        from tapetum.media.image import decode
        from tests.pure.test_media_image import png
        side = 4000
        for colour, source_bytes in ((0, 2), (6, 4), (4, 4)):
            row = b"\\0" + bytes(side * {0: 2, 6: 8, 4: 4}[colour])
            data = png(side, side, 16, colour, row * side)
            del row
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            decode(data, MediaConfig())
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            assert after - before < side * side * (source_bytes + 8) + 2**26, (colour, after - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The file with some bytes changed, cut out, doubled or put in."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out)) if rng.random() < 0.5 else rng.randrange(min(len(out), 64))
        end = min(len(out), at + rng.randint(1, 12))
        what = rng.randrange(4)
        if what == 0:
            out[at:end] = rng.randbytes(end - at)
        elif what == 1:
            out[at:end] = bytes([rng.choice((0, 255, 127, 128))]) * (end - at)
        elif what == 2 and len(out) > 16:
            del out[at:end]
        else:
            out[at:at] = out[at:end] if rng.random() < 0.5 else rng.randbytes(end - at)
    return bytes(out)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_fuzzed_files_give_a_picture_or_a_typed_error(kind):
    rng = random.Random(kind)
    config = MediaConfig(max_pixels=300_000)
    mode = {"JPEG": "RGB", "GIF": "P", "TIFF": "RGB", "BMP": "RGB"}.get(kind, "RGBA")
    original = encoded(picture(24, 16, mode), kind)
    outcomes = {"picture": 0, "error": 0}
    for _ in range(180):
        data = mutated(original, rng)
        try:
            size = read_size(data, config)
        except MediaError:
            with pytest.raises(MediaError):
                decode(data, config)
            outcomes["error"] += 1
            continue
        try:
            out = decode(data, config)
        except MediaError as error:
            assert str(error)
            outcomes["error"] += 1
        else:
            assert (out.mode, out.size) == ("RGB", size)
            outcomes["picture"] += 1
    assert min(outcomes.values()) > 0, outcomes
