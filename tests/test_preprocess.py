"""Every kind of picture comes out right, every kind of bad one is refused by name."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.errors import ZooError
from zoo.preprocess import ImagePreprocess, load_image


def encoded(picture: Image.Image, format: str, **options) -> bytes:
    out = io.BytesIO()
    picture.save(out, format, **options)
    return out.getvalue()


def noise(h: int, w: int, channels: int = 3, seed: int = 0) -> Image.Image:
    shape = (h, w, channels) if channels > 1 else (h, w)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    red_left = Image.new("RGB", (32, 16), "blue")
    red_left.paste("red", (0, 0, 16, 16))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose that the tag undoes
    stored = red_left if orientation == 1 else red_left.transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = load_image(encoded(stored, "PNG", exif=exif))
    assert np.array_equal(np.asarray(picture), np.asarray(red_left))


def test_exif_of_a_pil_image_is_applied_and_the_image_is_left_alone(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(8, 12).save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as opened:
        assert load_image(opened).size == (8, 12)
        assert opened.size == (12, 8)


@pytest.mark.parametrize("factor", [256, 257])
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_16_bit_gray_keeps_256_levels(factor, format):
    levels = (np.arange(256, dtype=np.uint16) * factor).reshape(16, 16)
    picture = np.asarray(load_image(encoded(Image.fromarray(levels), format)))
    assert np.array_equal(picture[..., 0].ravel(), np.arange(256))
    assert np.array_equal(np.asarray(load_image(levels)), picture)  # arrays likewise


@pytest.mark.parametrize("full", [1, 255, 65535])
def test_float_tiff_is_scaled(full):
    levels = (np.arange(256, dtype=np.float32) / 255 * full).reshape(16, 16)
    picture = np.asarray(load_image(encoded(Image.fromarray(levels), "TIFF")))
    assert np.array_equal(picture[..., 1].ravel(), np.arange(256))


def test_big_endian_16_bit_gray():
    levels = (np.arange(256, dtype=">u2") * 257).reshape(16, 16)
    header = b"P5 16 16 65535\n"
    assert np.array_equal(np.asarray(load_image(header + levels.tobytes()))[..., 2].ravel(), np.arange(256))


def test_transparency_is_laid_over_white():
    alpha = Image.fromarray(np.array([[0, 255], [128, 255]], np.uint8))
    black = Image.new("L", (2, 2), 0)
    for mode, channels in (("LA", (black, alpha)), ("RGBA", (black, black, black, alpha))):
        pixels = np.asarray(load_image(encoded(Image.merge(mode, channels), "PNG")))
        assert pixels.shape == (2, 2, 3)
        assert pixels[:, :, 0].tolist() == [[255, 0], [127, 0]]


def test_transparent_palette_gray_and_rgb():
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    for data in (encoded(palette, "PNG", transparency=0), encoded(palette, "GIF", transparency=0)):
        assert np.asarray(load_image(data))[0].tolist() == [[255, 255, 255], [40, 50, 60]]
    gray = Image.fromarray(np.array([[7, 9]], np.uint8))
    assert np.asarray(load_image(encoded(gray, "PNG", transparency=7)))[0, :, 0].tolist() == [255, 9]
    deep = Image.fromarray(np.array([[7 << 8, 9 << 8]], np.uint16))
    assert np.asarray(load_image(encoded(deep, "PNG", transparency=7 << 8)))[0, :, 0].tolist() == [255, 9]
    rgb = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    pixels = np.asarray(load_image(encoded(rgb, "PNG", transparency=(1, 2, 3))))
    assert pixels[0].tolist() == [[255, 255, 255], [4, 5, 6]]


def test_cmyk_1_bit_gray_and_plain_palette():
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    assert np.abs(np.asarray(load_image(encoded(cmyk, "JPEG"))).mean((0, 1)) - [255, 0, 0]).max() < 6
    bits = Image.fromarray(np.array([[True, False]]))
    assert np.asarray(load_image(encoded(bits, "PNG")))[0].tolist() == [[255] * 3, [0] * 3]
    gray = noise(5, 7, 1)
    assert np.array_equal(np.asarray(load_image(encoded(gray, "PNG")))[..., 2], np.asarray(gray))
    coloured = noise(5, 7).convert("P")
    assert load_image(encoded(coloured, "PNG")).tobytes() == coloured.convert("RGB").tobytes()


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_animation_gives_its_first_frame(format):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    picture = load_image(encoded(frames[0], format, save_all=True, append_images=frames[1:], duration=50))
    assert np.abs(np.asarray(picture).astype(int) - [255, 0, 0]).max() < 4


def test_arrays():
    values = np.asarray(noise(4, 6))
    assert np.array_equal(np.asarray(load_image(values)), values)
    assert np.array_equal(np.asarray(load_image(values / 255)), values)
    assert np.array_equal(np.asarray(load_image(values[:, :, :1]))[..., 1], values[:, :, 0])
    assert np.asarray(load_image(np.eye(2, dtype=bool)))[..., 0].tolist() == [[255, 0], [0, 255]]
    clear = np.zeros((1, 1, 4), np.uint8)
    assert np.asarray(load_image(clear)).tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize("array, said", [
    (np.zeros((3, 8, 8), np.uint8), "(3, 8, 8)"), (np.zeros((0, 4), np.uint8), "(0, 4)"),
    (np.zeros((4, 4), np.int64), "int64"), (np.full((4, 4), 1.5), "1.5"), (np.full((4, 4), np.nan), "nan")])
def test_wrong_arrays_are_refused_with_the_value(array, said):
    with pytest.raises(ZooError) as error:
        load_image(array, "x.npy")
    assert "x.npy" in str(error.value) and said in str(error.value)


def bomb() -> bytes:
    """A PNG of a few hundred bytes that says it has 60,000 x 60,000 pixels."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


@pytest.mark.parametrize("data, said", [
    (b"", "0 bytes"), (b"not a picture", "not a picture"), (bomb(), "decompression bomb"),
    (encoded(noise(64, 64), "JPEG")[:700], "broken picture"),
    (encoded(noise(64, 64), "PNG")[:700], "broken picture"),
    (encoded(noise(64, 64), "GIF")[:3000], "broken picture")],
    ids=["empty", "text", "bomb", "jpeg", "png", "gif"])
def test_a_bad_file_is_named_in_one_line(data, said, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(data)
    for source, name in ((tmp_path / "bad.jpg", None), (data, "bad.jpg")):
        with pytest.raises(ZooError) as error:
            load_image(source, name)
        assert "bad.jpg" in str(error.value) and said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of broken metadata
def test_flipped_bytes_raise_nothing_but_zoo_errors():
    rng = np.random.default_rng(0)
    for format in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        data = np.frombuffer(encoded(noise(16, 16), format), np.uint8)
        for _ in range(40):
            broken = data.copy()
            broken[rng.integers(0, len(data), 8)] = rng.integers(0, 256, 8)
            try:
                assert load_image(broken.tobytes()).mode == "RGB"
            except ZooError:
                pass


def test_missing_file_folder_and_wrong_type(tmp_path):
    for source, said in ((tmp_path / "no.png", "no such file"), (tmp_path, "folder"), (7, "int")):
        with pytest.raises(ZooError, match=said):
            load_image(source)


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize("h, w", [(48, 70), (70, 48), (32, 32), (5, 90), (7, 3), (1, 1)])
@pytest.mark.parametrize("crop_pct", [1.0, 0.9])
def test_crop_is_resize_of_the_shorter_side_then_centre_crop(size, h, w, crop_pct):
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    picture = noise(h, w)
    target = [int(n / crop_pct) for n in size]
    if size[0] == size[1]:
        scaled = resize(picture, target[0], InterpolationMode.BICUBIC)
    else:
        factor = max(target[0] / h, target[1] / w)
        scaled = resize(picture, [max(target[0], int(h * factor)), max(target[1], int(w * factor))],
                        InterpolationMode.BICUBIC)
    expected = np.asarray(center_crop(scaled, list(size)))
    got = ImagePreprocess(size, interpolation="bicubic", crop_pct=crop_pct).image(picture)
    assert got.shape == (*size, 3)
    assert np.array_equal(got, expected)


def test_crop_equals_timm():
    from timm.data import create_transform

    theirs = create_transform(224, interpolation="bicubic", crop_pct=0.9)
    ours = ImagePreprocess(224, interpolation="bicubic", crop_pct=0.9)
    for h, w in ((300, 451), (451, 300), (100, 100)):
        torch.testing.assert_close(ours(noise(h, w)), theirs(noise(h, w)), atol=1e-5, rtol=0)


def test_squash_and_pad_keep_the_whole_picture():
    picture = Image.new("RGB", (40, 10), "red")
    picture.paste("blue", (20, 0, 40, 10))
    squashed = ImagePreprocess((16, 16), fit="squash").image(picture)
    assert squashed[8, 0].tolist() == [255, 0, 0] and squashed[8, 15].tolist() == [0, 0, 255]
    padded = ImagePreprocess((16, 16), fit="pad")(picture)
    assert padded[:, 0].abs().max() < 0.01  # the ground is the mean colour
    assert torch.allclose(padded[0, 8, 0], torch.tensor((1 - 0.485) / 0.229))


def test_tensor_is_normalised_contiguous_and_the_same_from_every_source(tmp_path):
    picture = noise(20, 20)
    picture.save(tmp_path / "a.png")
    preprocess = ImagePreprocess(16, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])
    pixels = torch.from_numpy(preprocess.image(picture)) / 255
    expected = ((pixels - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor([0.2, 0.3, 0.4])).permute(2, 0, 1)
    tensor = preprocess(picture)
    assert tensor.dtype == torch.float32 and tensor.is_contiguous()
    torch.testing.assert_close(tensor, expected, atol=1e-5, rtol=0)
    path = tmp_path / "a.png"
    for source in (path, str(path), path.read_bytes(), np.asarray(picture)):
        assert torch.equal(preprocess(source), tensor)


def test_dict_round_trip_and_errors_that_name_the_key():
    preprocess = ImagePreprocess((30, 40), "pad", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic", 0.9)
    assert ImagePreprocess.from_dict(preprocess.to_dict()) == preprocess
    for key, value in (("size", 0), ("size", (3, 4, 5)), ("fit", "zoom"), ("mean", (1, 2)),
                       ("std", (0, 1, 1)), ("interpolation", "cubic"), ("crop_pct", 0.0), ("sise", 3)):
        with pytest.raises(ZooError) as error:
            ImagePreprocess.from_dict({key: value})
        assert key in str(error.value) and "allowed" in str(error.value)
