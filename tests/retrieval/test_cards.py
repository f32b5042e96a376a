import base64
import io

import pytest
from PIL import Image

from zoo.errors import ZooError
from zoo.retrieval import cards
from zoo.retrieval.search import Hit


def decoded(uri):
    kind, data = uri.removeprefix("data:image/").split(";base64,")
    return kind, Image.open(io.BytesIO(base64.b64decode(data)))


def test_nothing_from_outside_is_markup_or_template():
    nasty = "<b onclick='x'>\"&${1}{{y}}`"
    hit = Hit("k", None, 0.5, None, 1, 1)
    for html in (cards.picture_card(0, nasty, cards.address(nasty), nasty, hit), cards.status(nasty), cards.chips([nasty]),
                 cards.names([(nasty, hit)], nasty), cards.detail(nasty, nasty, Image.new("RGB", (4, 4)), []),
                 cards.grid([], nasty)):  # fmt: skip
        assert "<b onclick" not in html and "${" not in html and "{{" not in html and "`" not in html
        assert "&lt;b onclick=&#x27;x&#x27;&gt;&quot;&amp;&#36;&#123;1}" in html


def test_thumbnails_are_small_upright_and_over_white(tmp_path):
    photo = Image.effect_noise((1600, 800), 60).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    photo.save(tmp_path / "a.jpg", exif=exif)
    kind, small = decoded(cards.data_uri(cards.thumbnail(str(tmp_path / "a.jpg"), "a.jpg")))
    assert kind == "jpeg" and small.size == (96, 192)
    Image.new("RGBA", (40, 20), (0, 0, 0, 0)).save(tmp_path / "b.png")
    kind, drawing = decoded(cards.data_uri(cards.thumbnail((tmp_path / "b.png").read_bytes(), "b.png")))
    assert kind == "png" and drawing.size == (40, 20) and drawing.getpixel((0, 0)) == (255, 255, 255)


def test_an_unreadable_picture_is_named(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    for source in (str(tmp_path / "a.jpg"), b"no picture", str(tmp_path / "gone.jpg")):
        with pytest.raises(ZooError, match="^bird/a.jpg: "):
            cards.thumbnail(source, "bird/a.jpg")


@pytest.mark.parametrize(
    "before, after, shown", [(5, 1, '<span class="zoo-up">▲ 5 → 1'), (1, 3, '<span class="zoo-down">▼ 1 → 3'),
                             (2, 2, '<span class="zoo-same">= 2 → 2')]
)  # fmt: skip
def test_ranks_before_and_after(before, after, shown):
    html = cards.picture_card(0, "cat", "a.png", "en", Hit("k", None, 0.25, 0.875, before, after))
    assert shown in html and "match 88 %" in html and "score 0.250" in html
    assert "match" not in cards.picture_card(0, "cat", "a.png", "en", Hit("k", None, 0.25, None, after, after))


def test_the_address_of_a_thumbnail_holds_any_key():
    assert cards.address("a b/ü&?#.png") == "thumbnail?key=a%20b%2F%C3%BC%26%3F%23.png"
    assert 'src="thumbnail?key=a%22b" alt="" loading="lazy"' in cards.picture_card(0, "cat", cards.address('a"b'))
