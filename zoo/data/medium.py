"""What tells one medium from another: the files that count, the columns of a table, the words of an error."""

from collections.abc import Callable
from dataclasses import dataclass

from zoo.preprocess import load_image
from zoo.sound import check_sound

# soundfile cannot read these: they are found all the same, so that they are listed with the remedy and not lost in silence
_REFUSED = (".m4a", ".aac", ".wma", ".amr", ".ape", ".wv")


@dataclass(frozen=True)
class Medium:
    """kind: what `Items.kind` says. check(source, name) decodes all of it; ZooError where that fails."""

    kind: str
    noun: str
    example: str
    suffixes: frozenset[str]
    bytes_columns: tuple[str, ...]
    check: Callable

    @property
    def file_columns(self) -> tuple[str, ...]:
        return ("file", "path", *self.bytes_columns, "file_name", "filename")  # file_name: Hugging Face image folders


PICTURE = Medium("image", "picture", "picture.jpg", frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff",
     ".avif", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".jp2")), ("image",), load_image)
SOUND = Medium("sound", "sound", "sound.wav", frozenset(
    (".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".snd", ".caf",
     ".w64", ".rf64", *_REFUSED)), ("audio", "sound"), check_sound)
MEDIA = {medium.kind: medium for medium in (PICTURE, SOUND)}
