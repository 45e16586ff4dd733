"""Images and files: their sizes, read from their headers, and what they cost in a request.

Pure functions of bytes: nothing is decoded, and bytes of any kind are safe to pass.

`messages.Media` is an image or a file on its way to a model, with its bytes. `contents.MediaFacts`
is the same in the metadata of an event, with the address of its bytes. `session/media.py` records
one as the other and reads the bytes back.
"""

import struct

from scroll_context.contents import MediaFacts
from scroll_context.messages import Media

IMAGE_TOKENS = 1_600
"""The most that an image costs, and what one costs whose size is not known."""
LEAST_IMAGE_TOKENS = 85
FILE_TOKENS = 3_000
"""The assumed cost of a file that is not text. The provider's count corrects it."""


def media_tokens(media_type: str, size: int, width: int = 0, height: int = 0) -> int:
    """Tokens of an image or a file.

    An image costs a token for 750 pixels, as Anthropic counts; OpenAI's tiles come to about the
    same for large images and to less for small ones.
    """
    if media_type.startswith("image/"):
        if not width:
            return IMAGE_TOKENS
        by_pixels = max(LEAST_IMAGE_TOKENS, width * height // 750)
        return min(IMAGE_TOKENS, by_pixels)
    if media_type.startswith("text/"):
        return size * 2 // 7
    return FILE_TOKENS


def facts_of(media: Media) -> MediaFacts:
    """An image or a file as an event describes it, without the address of its bytes."""
    size = len(media.data)
    width, height = image_size(media.data)
    return MediaFacts(
        media_type=media.media_type,
        name=media.name,
        url=media.url,
        size=size,
        tokens=media_tokens(media.media_type, size, width, height),
    )


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG, GIF, JPEG or WebP; zeros for anything else."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        width, height = struct.unpack("<HH", data[6:10])
        return width, height
    if data[:4] == b"RIFF" and data[8:15] == b"WEBPVP8" and len(data) >= 30:
        return _webp_size(data)
    if data[:2] == b"\xff\xd8":
        return _jpeg_size(data)
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    if data[15:16] == b"X":
        width = int.from_bytes(data[24:27], "little") + 1
        return width, int.from_bytes(data[27:30], "little") + 1
    if data[15:16] == b"L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    width, height = struct.unpack("<HH", data[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """The size in the first frame header; segments before it are skipped by their length."""
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return 0, 0
