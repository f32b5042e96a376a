"""A recipe with anything in it: read, or refused with the file, the key and the reason."""

import pytest
import yaml
from fuzzing import broken, ends_well, fuzz, wrong
from hypothesis import given
from hypothesis import strategies as st

from zoo.errors import UsageError
from zoo.train import recipe as recipes

NAMES = ["image_scratch", "audio_scratch", "text_image_contrastive", "graph_regression", "image_distill"]


def test_fuzz_trees(tmp_path):
    file = tmp_path / "r.yaml"
    whole = [{**recipes.read(name).to_dict()} for name in NAMES if name in recipes.shipped()]
    short = [yaml.safe_load(recipes.shipped()[name].read_text()) for name in NAMES if name in recipes.shipped()]

    @fuzz(25)
    @given(st.sampled_from(whole + short).flatmap(wrong))
    def run(values):
        file.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
        found = ends_well(lambda: recipes.read(file), str(file))
        assert not isinstance(found, Exception) or isinstance(found, UsageError), found

    run()


def test_fuzz_text(tmp_path):
    file, data = tmp_path / "r.yaml", recipes.shipped()["image_scratch"].read_bytes()
    bits = st.sampled_from([b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"!!binary ", b"!!timestamp 2020-99-99", b"\0",
                            b"\xff", b"? ", b"- ", b"[", b"{", b"}", b"|", b">", b"%", b"!!int x", b"!!float x", b"!!set ", b"'",
                            b"0b", b"0x", b"1:99", b"\xef\xbb\xbf", b"---\n", b"...\n", b"2020-99-99", b"9" * 5000, b"!!omap "])

    @fuzz(25)
    @given(broken(data), st.lists(st.tuples(st.floats(0, 1), bits), max_size=4))
    def run(text, inserted):
        for share, part in inserted:
            at = int(share * len(text))
            text = text[:at] + part + text[at:]
        file.write_bytes(text)
        found = ends_well(lambda: recipes.read(file), str(file))
        assert not isinstance(found, Exception) or isinstance(found, UsageError), found

    run()


@pytest.mark.parametrize("flag", ["epochs", "lr", "freeze", "arguments", "val", "model", "preprocess"])
def test_fuzz_flags(flag):
    @fuzz(15)
    @given(st.one_of(st.text(max_size=12), st.sampled_from(["1e400", ".inf", ".nan", "9" * 500, "9" * 5000, "[" * 100,
        "!!python/x",
                                                            "2020-99-99", "{a: [*b]}", "&a [*a]", "\0"])))
    def run(text):
        ends_well(lambda: recipes.read("image_scratch", {flag: text}), flag)

    run()
