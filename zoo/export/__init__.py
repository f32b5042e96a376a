"""Models out: torch.export and ONNX programs, 8-bit weights, folders for the Hugging Face hub, model cards.

    zoo.export.export(zoo.load("image_nano.cifar10"), "onnx", "model.onnx")
"""


def export(model, to: str, out, int8: bool = False):
    """See zoo.export.files.export."""
    from pathlib import Path

    from zoo.export import files

    return files.export(model, to, Path(out), int8)
