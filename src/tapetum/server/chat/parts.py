"""The parts of a message's content: text, pictures, clips and documents in the words of several APIs, and what they
refer to.

Owns the shapes that are taken. References of clients are never trusted: whether one may be followed is the media
layer's to say, and so are the ranges of the options. A part has no other fields than these: an option that is
misspelt would be one that is ignored. `uuid`, `format` and `cache_control` may come with it and are not looked at,
since what a picture is, its pixels decide, and its file what it is written in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tapetum.core.chat import DocumentMode, DocumentPart, MediaPart
from tapetum.core.errors import InvalidParameter
from tapetum.core.media import MediaKind

Detail = Literal["auto", "low", "high"]


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    detail: Detail | None = None
    format: str | None = None
    uuid: str | None = None


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class InputTextPart(TextPart, frozen=True, tag="input_text"):
    """Text as /v1/responses calls it."""


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What the assistant would not do in an earlier turn; the model does not see it."""

    refusal: str


class _Media(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    detail: Detail | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    max_visual_tokens: int | None = None
    least_rung: str | None = None
    uuid: str | None = None
    cache_control: dict[str, object] | None = None


class _Video(_Media, frozen=True, kw_only=True):
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None


class _Image(_Media, frozen=True, kw_only=True):
    near_duplicate: bool | None = None


class ImageUrlPart(_Image, frozen=True, kw_only=True, tag="image_url"):
    image_url: Reference | str


class InputImagePart(ImageUrlPart, frozen=True, kw_only=True, tag="input_image"):
    """A picture as /v1/responses calls it."""

    file_id: None = None  # no files are kept here


class ImagePart(_Image, frozen=True, kw_only=True, tag="image"):
    image: str


class VideoUrlPart(_Video, frozen=True, kw_only=True, tag="video_url"):
    video_url: Reference | str


class VideoPart(_Video, frozen=True, kw_only=True, tag="video"):
    """A clip as a file, or as its frames in order; `fps` is then the rate at which they were taken."""

    video: str | Annotated[list[Reference | str], Meta(min_length=1)]


class _Document(_Image, frozen=True, kw_only=True):
    """What may be said of a document besides where it is; the rest is of each page as a picture."""

    mode: DocumentMode | None = None
    max_pages: int | None = None
    pages: list[int] | None = None
    page_text: bool | None = None


class FileReference(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file as OpenAI's APIs have it: its bytes in base64, or where they are."""

    file_data: str | None = None
    filename: str | None = None
    file_url: str | None = None
    file_id: str | None = None


class FilePart(_Document, frozen=True, kw_only=True, tag="file"):
    file: FileReference


class InputFilePart(_Document, frozen=True, kw_only=True, tag="input_file"):
    """A document as /v1/responses calls it."""

    file_data: str | None = None
    filename: str | None = None
    file_url: str | None = None
    file_id: str | None = None


FileContent = FilePart | InputFilePart
MediaContent = ImageUrlPart | InputImagePart | ImagePart | VideoUrlPart | VideoPart
Part = (
    str
    | TextPart
    | InputTextPart
    | RefusalPart
    | ImageUrlPart
    | InputImagePart
    | ImagePart
    | VideoUrlPart
    | VideoPart
    | FilePart
    | InputFilePart
)
PART_TYPES = "text, input_text, image_url, input_image, image, video_url, video, file or input_file"
Options = Mapping[MediaKind, Mapping[str, object]]


def content_of(content: str | Sequence[Part] | None, options: Options) -> tuple[str | MediaPart, ...]:
    """What the model sees of a message, in order. `options` of the whole request give way to those of a part."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    return tuple(_seen(part, options) for part in content if not isinstance(part, RefusalPart))


def check_parts(content: Sequence[Part], role: str, place: str) -> None:
    """What the types of the parts do not say; raises InvalidParameter."""
    for index, part in enumerate(content):
        if isinstance(part, RefusalPart) and role != "assistant":
            raise InvalidParameter(
                f"{place}[{index}]: a {role} message has a part of type refusal, only the assistant refuses; "
                "send it as text",
                param=f"{place}[{index}].type",
            )
        if isinstance(part, FileContent):
            check_file(part, f"{place}[{index}]")
        elif isinstance(part, _Media) and len(_details(part)) > 1:
            raise InvalidParameter(
                f"{place}[{index}]: the part has the details {' and '.join(sorted(_details(part)))}; send one",
                param=f"{place}[{index}].detail",
            )


def _seen(part: Part, options: Options) -> str | MediaPart:
    if isinstance(part, str):
        return part
    if isinstance(part, TextPart):
        return part.text
    assert not isinstance(part, RefusalPart)
    if isinstance(part, FileContent):
        return _document(part, options)
    kind: MediaKind = "video" if isinstance(part, (VideoUrlPart, VideoPart)) else "image"
    return MediaPart(kind=kind, source=_source(part), options={**options[kind], **_own_options(part)})


def check_file(part: FileContent, place: str) -> None:
    """Raises InvalidParameter for a file that is not here, or is here twice."""
    file = _reference(part)
    if file.file_id is not None:
        raise InvalidParameter(
            f"{place} has a file_id, and no files are kept here; send the document as file_data, a data: URL",
            param=f"{place}.file_id",
        )
    if (file.file_data is None) == (file.file_url is None):
        raise InvalidParameter(
            f"{place} has {'no file' if file.file_data is None else 'both file_data and file_url'}; "
            "send file_data, a data: URL of a PDF document, or file_url",
            param=f"{place}.file_data",
        )


def _reference(part: FileContent) -> FileReference:
    if isinstance(part, FilePart):
        return part.file
    return FileReference(
        file_data=part.file_data, filename=part.filename, file_url=part.file_url, file_id=part.file_id
    )


def _document(part: FileContent, options: Options) -> DocumentPart:
    file = _reference(part)
    source = file.file_url or file.file_data or ""
    if file.file_data is not None and not source.startswith("data:"):
        source = f"data:application/pdf;base64,{source}"  # never a path
    chosen: dict[str, Any] = {
        "mode": part.mode,
        "max_pages": part.max_pages,
        "pages": None if part.pages is None else tuple(part.pages),
        "page_text": part.page_text,
    }
    return DocumentPart(
        source=source,
        name=file.filename,
        options={**options["image"], **_own_options(part)},
        **{name: value for name, value in chosen.items() if value is not None},
    )


def _source(part: MediaContent) -> str | tuple[str, ...]:
    match part:
        case ImageUrlPart(image_url=reference) | VideoUrlPart(video_url=reference):
            return _url(reference)
        case ImagePart(image=source):
            return source
        case VideoPart(video=str() as source):
            return source
    return tuple(_url(frame) for frame in part.video)


def _own_options(part: MediaContent | FileContent) -> dict[str, object]:
    named: dict[str, object] = {
        "min_pixels": part.min_pixels,
        "max_pixels": part.max_pixels,
        "max_visual_tokens": part.max_visual_tokens,
        "least_rung": part.least_rung,
        "detail": next(iter(_details(part)), None),
    }
    if isinstance(part, _Image):
        named["near_duplicate"] = part.near_duplicate
    if isinstance(part, (VideoUrlPart, VideoPart)):
        frames = ("fps", "num_frames", "min_frames", "max_frames")
        named |= {name: getattr(part, name) for name in frames}
    return {name: value for name, value in named.items() if value is not None}


def _details(part: MediaContent | FileContent) -> set[Detail]:
    """What a part says of the detail it is seen in, in one place or several."""
    match part:
        case ImageUrlPart(image_url=reference) | VideoUrlPart(video_url=reference):
            references = [reference]
        case VideoPart(video=list() as frames):
            references = frames
        case _:
            references = []
    own = [reference.detail for reference in references if isinstance(reference, Reference)]
    return {detail for detail in (part.detail, *own) if detail is not None}


def _url(reference: Reference | str) -> str:
    return reference if isinstance(reference, str) else reference.url
