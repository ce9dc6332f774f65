"""PDF files for tests: pages of text and lines, written by hand, and files that are not what they say.

Owns a writer of the plainest PDF there is. Text goes in as UTF-16 through a font without glyphs that maps every code
to itself, so any script has a text layer, and in Helvetica where it is ASCII, so that there is something to see.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence

A4 = (595, 842)
_SELF_MAP = (
    b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /Self def /CMapType 2 def\n"
    b"1 begincodespacerange <0000> <FFFF> endcodespacerange\n"
    b"1 beginbfrange <0000> <FFFF> <0000> endbfrange endcmap end end"
)


def pdf(pages: Iterable[str], *, box: Sequence[float] = A4, drawing: bytes = b"") -> bytes:
    """A document with these texts, one line of a page each; `drawing` are operators that every page begins with."""
    file = _File()
    plain = file.add(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    self_map = file.add_stream(_SELF_MAP)
    below = file.add(
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Any /CIDSystemInfo << /Registry (Adobe) "
        b"/Ordering (Identity) /Supplement 0 >> /DW 1000 >>"
    )
    wide = file.add(
        b"<< /Type /Font /Subtype /Type0 /BaseFont /Any /Encoding /Identity-H /DescendantFonts [%d 0 R] "
        b"/ToUnicode %d 0 R >>" % (below, self_map)
    )
    fonts = b"/Resources << /Font << /P %d 0 R /W %d 0 R >> >>" % (plain, wide)
    tree = file.reserve()
    area = b" ".join(b"%d" % side for side in box)
    leaves = []
    for text in pages:
        content = file.add_stream(drawing + _written(text, box[1]))
        leaves.append(
            file.add(
                b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 %b] %b /Contents %d 0 R >>"
                % (tree, area, fonts, content)
            )
        )
    kids = b" ".join(b"%d 0 R" % leaf for leaf in leaves)
    file.set(tree, b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(leaves)))
    return file.finished(file.add(b"<< /Type /Catalog /Pages %d 0 R >>" % tree))


def encrypted_pdf() -> bytes:
    """One whose password nobody knows."""
    whole = pdf(["secret"])
    lock = b"/Encrypt << /Filter /Standard /V 1 /R 2 /Length 40 /P -4 /O <%b> /U <%b> >> /ID [<00> <00>]" % (
        b"11" * 32,
        b"22" * 32,
    )
    return whole.replace(b"/Root", lock + b" /Root")


def locked_pdf(owner: bytes, user: bytes) -> bytes:
    """One page with "secret" on it, encrypted as PDF 1.1 did. With `user` empty anybody may open it."""
    owner_key = hashlib.md5(_padded(owner)).digest()[:5]
    for_owner = _rc4(owner_key, _padded(user))
    key = hashlib.md5(_padded(user) + for_owner + (-4).to_bytes(4, "little", signed=True) + b"\0").digest()[
        :5
    ]
    lock = b"/Encrypt << /Filter /Standard /V 1 /R 2 /Length 40 /P -4 /O <%b> /U <%b> >> /ID [<00> <00>]" % (
        for_owner.hex().encode(),
        _rc4(key, _PADDING).hex().encode(),
    )
    file = _File()
    font = file.add(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    number = file.reserve()
    own_key = hashlib.md5(key + number.to_bytes(3, "little") + b"\0\0").digest()[:10]
    drawing = _rc4(own_key, b"BT /F 40 Tf 40 700 Td (secret) Tj ET")
    file.set(number, b"<< /Length %d >> stream\n%b\nendstream" % (len(drawing), drawing))
    tree = file.reserve()
    page = file.add(
        b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F %d 0 R >> >> "
        b"/Contents %d 0 R >>" % (tree, font, number)
    )
    file.set(tree, b"<< /Type /Pages /Kids [%d 0 R] /Count 1 >>" % page)
    whole = file.finished(file.add(b"<< /Type /Catalog /Pages %d 0 R >>" % tree))
    return whole.replace(b"/Root", lock + b" /Root")


def pages_claimed_pdf(count: int) -> bytes:
    """One that has a single page and says that it has so many."""
    return pdf(["x"]).replace(b"/Count 1 ", b"/Count %d " % count)


_PADDING = bytes.fromhex("28bf4e5e4e758a4164004e56fffa01082e2e00b6d0683e802f0ca9fe6453697a")


def _padded(password: bytes) -> bytes:
    return (password + _PADDING)[:32]


def _rc4(key: bytes, data: bytes) -> bytes:
    state, mixed = list(range(256)), 0
    for index in range(256):
        mixed = (mixed + state[index] + key[index % len(key)]) % 256
        state[index], state[mixed] = state[mixed], state[index]
    out, at, mixed = bytearray(), 0, 0
    for byte in data:
        at = (at + 1) % 256
        mixed = (mixed + state[at]) % 256
        state[at], state[mixed] = state[mixed], state[at]
        out.append(byte ^ state[(state[at] + state[mixed]) % 256])
    return bytes(out)


def bomb_pdf(num_bytes: int) -> bytes:
    """One whose only page is so large once it is unpacked, and does nothing all the while."""
    return pdf([""], drawing=b"0 0 m 9 9 l S\n" * (num_bytes // 14))


def _written(text: str, height: float) -> bytes:
    lines = [b"BT 14 TL 40 %.7g Td" % (height - 50)]
    for line in text.split("\n"):
        if line.isascii():
            escaped = line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
            lines.append(b"/P 11 Tf (%b) Tj T*" % escaped.encode())
        else:
            lines.append(b"/W 11 Tf <%b> Tj T*" % line.encode("utf-16-be").hex().encode())
    return b"\n".join((*lines, b"ET"))


class _File:
    def __init__(self) -> None:
        self._objects: list[bytes] = []

    def reserve(self) -> int:
        return self.add(b"")

    def add(self, body: bytes) -> int:
        self._objects.append(body)
        return len(self._objects)

    def set(self, number: int, body: bytes) -> None:
        self._objects[number - 1] = body

    def add_stream(self, data: bytes) -> int:
        packed = zlib.compress(data)
        return self.add(
            b"<< /Length %d /Filter /FlateDecode >> stream\n%b\nendstream" % (len(packed), packed)
        )

    def finished(self, root: int) -> bytes:
        out = bytearray(b"%PDF-1.7\n")
        places = []
        for number, body in enumerate(self._objects, 1):
            places.append(len(out))
            out += b"%d 0 obj %b endobj\n" % (number, body)
        start = len(out)
        out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
        out += b"".join(b"%010d 00000 n \n" % place for place in places)
        out += b"trailer << /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
            len(places) + 1,
            root,
            start,
        )
        return bytes(out)
