"""zoo: one attention core, four modalities, from a recipe to a search page.

    zoo.list_models("image*")
    model = zoo.load("image_nano.cifar10")
    model.predict(["cat.jpg"])

Importing zoo does not import torch.
"""

__version__ = "0.1.0"


def list_models(pattern: str = "*") -> list[str]:
    """Registered models and checkpoints whose name matches the wildcard."""
    from fnmatch import fnmatch

    from zoo import checkpoint, registry

    return registry.names(pattern) + [name for name in checkpoint.shipped() if fnmatch(name, pattern)]


def create_model(name: str, weights: str | None = None, **arguments):
    """A freshly initialised model of the registry, with a card and preprocessing. ZooError for an unknown name.

    `weights`: public ones instead, "source:file" (sources: zoo convert --help), "hf:owner/name" or "timm:name".
    """
    if weights is not None:
        from zoo import foreign

        return foreign.create(name, weights, arguments)
    from zoo import inference

    return inference.create(name, arguments)


def load(source):
    """A trained model (name, file or run folder) in eval mode, with card, preprocess, predict, embed."""
    from zoo import inference

    return inference.load(source)


def save(model, file):
    """Writes a model of this package to one safetensors file."""
    from zoo import checkpoint

    return checkpoint.save(model, file)


def __getattr__(name: str):
    import importlib

    if name in ("retrieval", "core", "data", "models", "train", "explain", "export"):
        return importlib.import_module(f"zoo.{name}")
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")
