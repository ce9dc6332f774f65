"""Video files: which frames, when, which way up; what is decoded, and what is refused."""

from __future__ import annotations

import struct
import sys
from io import BytesIO

import av
import numpy as np
import pytest
from PIL import Image

from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import InvalidParameter, MediaError, MediaTooLarge
from tapetum.media import video as video_module
from tapetum.media.deadlines import GivenUp
from tapetum.media.ingest import Ingest
from tapetum.media.video import read_frames, read_header
from tapetum.processing.sampling import FrameSampling
from tests.processors import make_processor
from tests.pure.clips import SIZE, avi, encoded, jpeg

CONFIG = MediaConfig()


def go_on() -> None:
    pass


def header(data: bytes, **config):
    return read_header(data, MediaConfig(**config), go_on)


def frames(data: bytes, wanted, **config) -> list[np.ndarray]:
    limits = MediaConfig(**config)
    return [
        np.asarray(one) for one in read_frames(data, read_header(data, limits, go_on), wanted, limits, go_on)
    ]


def all_frames(data: bytes, demuxer: str) -> list[np.ndarray]:
    """What a plain decode from the first to the last gives."""
    with av.open(BytesIO(data), format=demuxer) as file:
        return [one.to_ndarray(format="rgb24") for one in file.decode(video=0)]


FILES = {
    "h264 mp4": (lambda: encoded(40), "mov"),
    "h264 open gop": (
        lambda: encoded(40, gop=8, options={"x264-params": "open-gop=1:bframes=3:scenecut=0"}),
        "mov",
    ),
    "h264 webm": (lambda: encoded(40, container="matroska"), "matroska"),
    "h264 ts": (lambda: encoded(40, container="mpegts"), "mpegts"),
    "h264 avi": (lambda: encoded(40, container="avi"), "avi"),
    "h265 mp4": (lambda: encoded(40, codec="libx265", options={"x265-params": "log-level=none"}), "mov"),
    "vp8": (lambda: encoded(40, codec="libvpx", container="webm"), "matroska"),
    "vp9": (lambda: encoded(40, codec="libvpx-vp9", container="webm"), "matroska"),
    "mpeg4 avi": (lambda: encoded(40, codec="mpeg4", container="avi"), "avi"),
    "flv": (lambda: encoded(40, codec="flv", container="flv"), "flv"),
    "mjpeg avi": (lambda: avi([jpeg(number) for number in range(40)]), "avi"),
}


@pytest.fixture(scope="module", params=FILES)
def file(request) -> tuple[bytes, str]:
    make, demuxer = FILES[request.param]
    return make(), demuxer


@pytest.mark.parametrize(
    "wanted", [[0], [39], [17], [3, 4, 30], list(range(0, 40, 7)), list(range(40)), [5, 5, 20, 20, 20]]
)
def test_chosen_frames_are_those_of_a_whole_decode(file, wanted):
    data, demuxer = file
    expected = all_frames(data, demuxer)
    found = header(data)
    assert (found.num_frames, found.size) == (40, SIZE)
    got = frames(data, wanted)
    assert len(got) == len(wanted)
    for number, picture in zip(wanted, got, strict=True):
        assert np.array_equal(picture, expected[number]), number


def count_decodes(monkeypatch) -> list[int]:
    counts: list[int] = []
    decoded = video_module.decoded

    def counting(stream, packet):
        counts.append(packet is not None)
        return decoded(stream, packet)

    monkeypatch.setattr(video_module, "decoded", counting)
    return counts


def test_only_what_is_needed_is_decoded(monkeypatch):
    data = encoded(100, gop=10, options={"bf": "0", "sc_threshold": "0"})
    found = header(data)
    counts = count_decodes(monkeypatch)
    list(read_frames(data, found, [0, 55, 90], CONFIG, go_on))
    assert sum(counts) <= 1 + 6 + 1 + 6, "from each keyframe to the frame, and what the decoder holds back"
    intra = avi([jpeg(number) for number in range(50)])
    found = header(intra)
    counts.clear()
    list(read_frames(intra, found, [0, 20, 49], CONFIG, go_on))
    assert sum(counts) == 3


def test_a_header_costs_one_frame(monkeypatch):
    counts = count_decodes(monkeypatch)
    assert header(avi([jpeg(number) for number in range(50)])).num_frames == 50
    assert sum(counts) == 1


@pytest.mark.parametrize("turned", [0, 90, 180, -90])
def test_frames_are_upright(turned):
    """The mark is in the upper left as filmed; a player turns it as the file says, counter-clockwise."""
    data = encoded(3, turned=turned)
    found = header(data)
    assert found.size == (SIZE if turned in (0, 180) else SIZE[::-1])
    (picture,) = frames(data, [0])
    (plain,) = frames(encoded(3), [0])
    assert np.abs(np.rot90(plain, turned // 90).astype(int) - picture).max() <= 2


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_times_of_a_variable_rate(container):
    """Frames 0 to 9 within a second, then one that stays for nine seconds, then one more."""
    times = [*range(0, 100, 10), 100, 1000]
    found = header(encoded(12, times=times, container=container, options={"bf": "0"}))
    assert found.num_frames == 12
    assert found.seconds == pytest.approx(10, abs=1.0)
    chosen = found.choose(10, FrameSampling())
    assert chosen[0] == 0 and len(chosen) == 10
    assert chosen[1:9].count(10) >= 7, "what is shown for long is seen often"
    steady = header(encoded(12, container=container))
    assert steady.choose(6, FrameSampling()) == [0, 2, 4, 6, 8, 10]
    assert steady.choose(6, FrameSampling(has_last=True)) == [0, 2, 4, 7, 9, 11]
    assert found.choose(3, FrameSampling(has_last=True)) == [0, 10, 11]


def test_a_clock_of_milliseconds_keeps_a_rate_it_cannot_express():
    found = header(encoded(30, rate=30, container="matroska"))
    assert found.choose(10, FrameSampling()) == list(range(0, 30, 3))


# --- unusual files


def test_unusual_files():
    pictures = [jpeg(number) for number in range(4)]
    assert header(avi(pictures, declared=0)).num_frames == 4
    assert header(avi(pictures, declared=9)).num_frames == 4
    without_rate = header(avi(pictures, rate=(0, 0)))
    assert without_rate.num_frames == 4 and without_rate.seconds > 0
    assert header(avi(pictures[:1])).num_frames == 1
    cut = encoded(40, container="matroska")
    assert 10 < header(cut[: len(cut) * 2 // 3]).num_frames < 40, "what arrived can be seen"


def test_a_broken_frame_is_held_by_the_one_before():
    pictures = [jpeg(number) for number in range(10)]
    whole = frames(avi(pictures), range(10))
    pictures[4] = pictures[4][:60] + bytes(200)
    got = frames(avi(pictures), range(10))
    assert [np.array_equal(a, b) for a, b in zip(got, whole, strict=True)] == [
        number != 4 for number in range(10)
    ]
    assert np.array_equal(got[4], whole[3])
    pictures = [bytes(200), *pictures[1:4]]
    got = frames(avi(pictures), range(4))
    assert np.array_equal(got[0], whole[1]), "the first that can be decoded stands for what came before it"


def test_mostly_broken_frames_are_refused():
    pictures = [bytes(200) if number % 2 else jpeg(number) for number in range(10)]
    assert len(frames(avi(pictures), range(10))) == 10, "half of them are enough"
    pictures = [jpeg(0), *[bytes(200)] * 9]
    with pytest.raises(MediaError, match="9 of 10 frames of the video cannot be decoded"):
        frames(avi(pictures), range(10))


TEXT_TRACK = b"\x1aE\xdf\xa3" + bytes(100)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"no video at all", "none of the formats"),
        (jpeg(0), "none of the formats"),
        (b"#EXTM3U\n#EXTINF:1\nfile:///etc/passwd\n", "none of the formats"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "none of the formats"),
        (b"<?xml version='1.0'?><MPD/>", "none of the formats"),
        (avi([jpeg(0)])[:120], "cannot be decoded|no frame"),
        (avi([]), "no frame"),
        (avi([bytes(100)] * 3), "no frame"),
        (TEXT_TRACK, "video cannot be decoded|no stream"),
        (b"\0\0\0\x18ftypmp42" + bytes(100), "video cannot be decoded|no stream"),
        (encoded(5)[:-200], "video"),
    ],
)
def test_files_that_are_refused(data, words):
    with pytest.raises(MediaError, match=words) as caught:
        frames(data, [0])
    assert caught.value.http_status == 400
    assert "video" in str(caught.value) and len(str(caught.value)) < 300


def test_sizes_are_checked_before_a_frame_is_decoded(monkeypatch):
    counts = count_decodes(monkeypatch)
    data = encoded(4)
    with pytest.raises(MediaTooLarge, match="64x48 = 3072 pixels, limit 3000"):
        header(data, max_pixels=3000)
    assert counts == []
    with pytest.raises(MediaTooLarge, match="bytes"):
        header(data, max_bytes=100)


def test_a_frame_may_be_as_large_as_a_picture():
    """Although a decoder works on whole blocks, and 41 x 41 pixels take 48 x 48."""
    data = avi([jpeg(0, (41, 41))], size=(41, 41))
    assert header(data, max_pixels=41 * 41).size == (41, 41)
    with pytest.raises(MediaTooLarge, match="41x41"):
        header(data, max_pixels=41 * 41 - 1)


def test_frames_larger_than_their_header_says_are_not_decoded():
    """A header of 64x48 over a JPEG that claims 60000x60000: gigabytes, were it believed."""
    huge = bytearray(jpeg(0))
    at = huge.index(b"\xff\xc0")
    huge[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
    with pytest.raises(MediaError, match=r"no frame|cannot be decoded"):
        header(avi([bytes(huge)] * 3))


def test_too_many_frames(monkeypatch):
    monkeypatch.setattr(video_module, "MAX_PACKETS", 10)
    assert header(avi([jpeg(0)] * 10)).num_frames == 10
    with pytest.raises(MediaTooLarge, match="more than 10 frames"):
        header(avi([jpeg(0)] * 11))


def test_a_video_of_years_is_refused():
    with pytest.raises(MediaError, match="video lasts"):
        header(avi([jpeg(0)] * 4, rate=(1, 10**8)))


def test_work_stops_when_nobody_waits():
    data = avi([jpeg(number) for number in range(20)])
    found = header(data)
    calls = iter([None] * 5)

    def leave() -> None:
        if next(calls, GivenUp) is GivenUp:
            raise GivenUp

    with pytest.raises(GivenUp):
        list(read_frames(data, found, range(20), CONFIG, leave))
    with pytest.raises(GivenUp):
        read_header(data, CONFIG, leave)


def test_without_pyav_the_error_names_the_extra(monkeypatch):
    data = encoded(4)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MediaError, match=r"not supported .* install tapetum\[video\]"):
        header(data)


def test_transparent_frames_lie_on_the_ground():
    out = BytesIO()
    first, second = Image.new("P", SIZE, 0), Image.new("P", SIZE, 1)
    for picture in (first, second):
        picture.putpalette([200, 0, 200, 0, 160, 0])
        picture.paste(1, (0, 0, 20, 20))
    first.save(out, "GIF", save_all=True, append_images=[second], transparency=0, duration=100)
    picture = frames(out.getvalue(), [0], alpha_ground=(10, 20, 30))[0]
    assert tuple(picture[40, 60]) == (10, 20, 30)
    assert tuple(picture[5, 5]) == (0, 160, 0)


# --- through the worker pool


def load(source: object, model: str = "qwen2_vl", config: MediaConfig = CONFIG, **options):
    ingest = Ingest(make_processor(model), config, workers=1)
    try:
        return ingest.load(MediaPart(kind="video", source=source, options=options), tenant="")
    finally:
        ingest.close()


@pytest.mark.parametrize("count", [1, 3, 7])
def test_an_odd_number_of_frames_is_the_same_with_the_last_repeated(count):
    pictures = [jpeg(number) for number in range(count)]
    odd, even = load(avi(pictures)), load(avi([*pictures, pictures[-1]]))
    assert odd.geometry.frames == count
    assert odd.geometry.num_tokens == even.geometry.num_tokens
    assert np.array_equal(odd.patches, even.patches)


def test_a_file_is_like_the_list_of_its_frames():
    pictures = [jpeg(number) for number in range(6)]
    data = avi(pictures, rate=(2, 1))
    of_file = load(data, "qwen2_5_vl")
    of_list = load(frames(data, range(6)), "qwen2_5_vl", fps=2)
    assert of_file.geometry == of_list.geometry and of_file.key == of_list.key


def test_options_choose_the_frames():
    data = encoded(100, rate=10)  # ten seconds
    clock = {"model": "qwen2_5_vl"}
    usual = load(data, **clock).geometry
    assert (usual.frames, usual.seconds_per_grid) == (20, 1.0)
    assert load(data, **clock, fps=1).geometry.seconds_per_grid == 2.0
    assert load(data, **clock, num_frames=8).geometry.seconds_per_grid == 2.5
    counts = {
        (("fps", 1.0),): 10,
        (("num_frames", 8),): 8,
        (("num_frames", -1),): 100,
        (("num_frames", 8), ("fps", 5)): 8,
        (("num_frames", 80), ("fps", 5)): 50,
        (("max_frames", 6),): 6,
        (("fps", 0.1),): 4,
        (("fps", 0.1), ("min_frames", 6)): 6,
    }
    for options, count in counts.items():
        assert load(data, **dict(options)).geometry.frames == count, options
    keys = {load(data, num_frames=count).key for count in (4, 6, 8)}
    assert len(keys) == 3


def test_frames_of_a_list_are_chosen_on_demand():
    pictures = [jpeg(number) for number in range(12)]
    assert load(pictures).geometry.frames == 12
    few = load(pictures, "qwen2_5_vl", num_frames=4, fps=4)
    assert few.geometry.frames == 4
    assert few.geometry.seconds_per_grid == pytest.approx(2 / (4 / 3))
    assert np.array_equal(few.patches, load(pictures[::3]).patches)
    assert load(pictures, max_frames=6).geometry.frames == 6


def test_a_server_bounds_what_requests_may_ask():
    data = encoded(100, rate=10)
    config = MediaConfig(media_io_kwargs={"video": {"num_frames": 10, "fps": 2}})
    assert load(data, config=config).geometry.frames == 10
    assert load(data, config=config, num_frames=4).geometry.frames == 4
    assert load(data, config=config, fps=0.5).geometry.frames == 4
    for options in (
        {"num_frames": 11},
        {"num_frames": -1},
        {"fps": 3},
        {"max_frames": 11},
        {"min_frames": 12},
    ):
        with pytest.raises(InvalidParameter, match="on this server") as caught:
            load(data, config=config, **options)
        assert caught.value.param == next(iter(options))
    pictures = [jpeg(number) for number in range(8)]
    assert load(pictures, config=config, fps=30).geometry.frames == 8, "their rate is what it is"


def test_more_frames_than_the_server_takes():
    with pytest.raises(MediaTooLarge, match="20 frames would be taken from the video, limit 10"):
        load(encoded(100, rate=10), config=MediaConfig(max_frames=10))
