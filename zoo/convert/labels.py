"""What lies in a config beside foreign weights: names of the classes, and how pictures were prepared."""

_INTERPOLATIONS = {"bilinear": "bilinear", "bicubic": "bicubic", 2: "bilinear", 3: "bicubic"}  # numbers: PIL's


def of(config: dict, classes: int) -> tuple[list[str] | None, list[str]]:
    """(names in the order of the logits or None, notes). 1000 logits without names are taken for ImageNet-1k; a note says so."""
    names = _named(config)
    if names and len(names) == classes:
        return names, []
    if classes != 1000:
        return None, []
    from timm.data import ImageNetInfo

    note = "1000 logits without names: taken for ImageNet-1k in its usual order"
    return list(ImageNetInfo("imagenet-1k").label_descriptions()), [note]


def _named(config: dict) -> list[str] | None:
    pretrained = config.get("pretrained_cfg", {})
    if names := config.get("label_names") or pretrained.get("label_names"):  # timm
        texts = config.get("label_descriptions") or pretrained.get("label_descriptions") or {}
        return [texts.get(name, name) for name in names]
    table = {int(i): name for i, name in config.get("id2label", {}).items()}
    names = [table[i] for i in sorted(table)]
    return None if names == [f"LABEL_{i}" for i in range(len(names))] else names


def preprocess(config: dict) -> dict:
    """Settings of zoo.preprocess that a timm config or a Hugging Face preprocessor_config gives; {} where there is none."""
    if timm := config.get("pretrained_cfg"):
        size = timm.get("input_size")
        found = {"size": list(size[1:]) if size else None, "mean": timm.get("mean"), "std": timm.get("std"),
                 "crop_pct": timm.get("crop_pct"), "interpolation": _INTERPOLATIONS.get(timm.get("interpolation")),
                 "fit": {"squash": "squash"}.get(timm.get("crop_mode"))}
    else:
        theirs = config.get("preprocessor", {})
        size = _size(theirs.get("size") or config.get("image_size"))
        # their processor ignores the aspect, unless it is told to crop
        squash = {"fit": "squash", "crop_pct": 1.0} if theirs and not theirs.get("do_center_crop") else {}
        found = {"size": size, "mean": theirs.get("image_mean"), "std": theirs.get("image_std"),
                 "interpolation": _INTERPOLATIONS.get(theirs.get("resample")), **squash}
    return {key: value for key, value in found.items() if value is not None}


def _size(theirs) -> list[int] | None:
    if isinstance(theirs, int):
        return [theirs, theirs]
    if isinstance(theirs, dict):
        return [theirs["height"], theirs["width"]] if "height" in theirs else None
    return list(theirs) if theirs else None
