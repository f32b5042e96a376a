"""A recipe: YAML (or flags) -> a typed dataclass, with every problem reported at once."""

import typing
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path

from zoo.errors import UsageError
from zoo.train import document
from zoo.train.casting import cast, say
from zoo.train.fits import unfit

TASKS = {  # what is learnt: the modality that can
    "image_classification": "image",
    "audio_classification": "audio",
    "audio_tagging": "audio",
    "text_image_contrastive": "text_image",
    "graph_regression": "graph",
    "graph_classification": "graph",
    "node_classification": "graph",
    "link_prediction": "graph",
}
TAUGHT = ("image_classification", "audio_classification")  # tasks that a teacher can help with
AT_MOST = {"epochs": 10**6, "batch_size": 10**6, "accumulate": 10**6, "buffer": 10**7, "bank": 10**7, "parts": 10**6,
           "lora": 10**4, "workers": 256, "seed": 2**32 - 1, "patience": 10**6}  # above, it is a slip
AUGMENT = ("none", "light", "medium", "strong")


def key(about: str, default=MISSING, factory=MISSING):
    """A recipe key with the line that documents it."""
    given = {"default_factory": factory} if factory is not MISSING else {"default": default}
    return field(metadata={"about": about}, **given)


@dataclass
class Recipe:
    """All keys of all recipes. `task` and `model` have no default."""

    task: str = key("what is learnt: " + " | ".join(TASKS), "")
    model: str = key("registry name, see: zoo list", "")
    name: str = key("name of the checkpoint and of the run folder; default: model", "")
    arguments: dict = key("constructor arguments of the model", factory=dict)
    start: str = key("checkpoint to start from (name, file or run folder); empty: from scratch", "")
    image_start: str = key("text-image: checkpoint that the image tower starts from, e.g. image_nano.cifar10", "")
    freeze: list[str] = key("parameters that stay as they are, by prefix, e.g. [patch_embed, stages.0]", factory=list)
    unfreeze_from: int = key("text-image: blocks of the text tower from this one on learn too; -1: none", -1)
    lora: int = key("rank of LoRA: weights below lora_on stay, low-rank products beside them learn; 0: off", 0)
    lora_on: list[str] = key("prefixes for LoRA; empty: all but the classifier, of text-image models both towers", factory=list)
    lora_merge: bool = key("LoRA is added to the weights on saving; false: an adapter file, to go on start", True)
    data: str = key("folder or table to train on", "")
    stream: str = key("shards are read as they come: auto (tar files, Parquet from 1 GiB on) | always | never", "auto")
    buffer: int = key("items of shards that are shuffled among each other; their pictures are in memory", 2048)
    targets: list[str] = key("columns that hold what is learnt; empty: label, or y of graphs", factory=list)
    names: list[str] = key("what the targets are called in answers; empty: as their columns", factory=list)
    units: list[str] = key("units of the targets, for predictions and the card", factory=list)
    metric: str = key("regression: rmse | mae, what is minimised and what `best` goes by", "rmse")
    smiles: str = key("molecules: the column of SMILES", "smiles")
    directed: bool = key("graphs: edges have a direction", False)
    scaling: str = key("graphs: float columns are scaled: standard | rows (each sums to 1) | none", "standard")
    neighbours: list[str] = key("one big graph: neighbours sampled per hop, e.g. [10, 5]; empty: the whole graph", factory=list)
    parts: int = key("one big graph: parts it is cut into, batch_size of which are trained at once; 1: whole", 1)
    split_column: str = key("column of a table that names the split of a row", "split")
    hold_out: list[str] = key("values of split_column that are kept out of training, e.g. the fold to test on", factory=list)
    captions: list[str] = key("columns that hold captions; empty: caption, captions or text", factory=list)
    first_caption: float = key("share of draws that take a picture's first caption (its name); 0: all captions alike", 0.0)
    val: float | str = key("fraction of the training split held out, or the name of a split", 0.1)
    preprocess: dict = key("size, fit, mean, std ... where they differ from the model's", factory=dict)
    augment: str = key("none | light | medium | strong; pictures: crop, flip, RandAugment; sounds: gain, shift, masks", "light")
    mixup: float = key("Beta parameter of mixup (pictures and sounds); 0: off", 0.0)
    balance: str = key("class balance: none | sampler | weights", "none")
    epochs: int = key("passes over the training split", 30)
    batch_size: int = key("items in a batch", 128)
    accumulate: int = key("batches whose gradients are summed before a step", 1)
    optimizer: str = key("adamw | nmuon | sgd | any other name of timm", "adamw")
    lr: float = key("peak learning rate", 1e-3)
    warmup: float = key("share of the steps in which the rate rises; then it falls as a cosine to 0", 0.1)
    weight_decay: float = key("decoupled weight decay (not on biases, norms and position tables)", 0.05)
    layer_decay: float = key("rate of each layer towards the input, as a factor; 1: the same everywhere", 1.0)
    clip: float = key("largest gradient norm; 0: no limit", 1.0)
    label_smoothing: float = key("share of the target spread over all classes", 0.0)
    teacher: str = key("pictures, sounds: checkpoint of the same labels to learn from (name, file, run folder); empty: none", "")
    teacher_share: float = key("share of the loss that goes to the teacher's answers; the rest to the labels", 0.9)
    temperature: float = key("what the logits of both are divided by where the answers are compared", 2.0)
    map_weight: float = key("weight of the term that makes attention maps equal the teacher's; 0: off", 1.0)
    map_layers: str = key("layers whose maps are compared: last | all", "last")
    loss: str = key("text-image: contrastive loss, softmax | sigmoid (SigLIP's, for small batches)", "softmax")
    soft_targets: float = key("text-image: share of the target that goes by how alike the captions are; softmax only", 0.0)
    bank: int = key("text-image: past pairs kept as further wrong ones, for small batches; 0: none", 0)
    match_weight: float = key("text-image: weight of the match loss beside the contrastive one; 0: off", 1.0)
    ema: float = key("decay of the moving average of the weights; 0: off", 0.0)
    patience: int = key("epochs without a better validation score before stopping; 0: never stop early", 0)
    precision: str = key("auto (bf16 where the processor has it) | bf16 | fp32", "auto")
    strategy: str = key("several processes (torchrun): auto (ddp) | ddp | fsdp (weights are cut over them)", "auto")
    compile: bool = key("torch.compile: the first steps take minutes, the others less time; needs a C++ compiler", False)
    checkpoint_blocks: bool = key("gradient checkpointing: less memory, more time", False)
    seed: int = key("drives weights, order and augmentation", 0)
    workers: int = key("processes that load data; 0: in the main process", 0)
    licence: str = key("terms of the weights, for the card", "")
    about: str = key("one line about the data, for the card", "")

    def to_dict(self) -> dict:
        return asdict(self)


def read(source: str | Path, overrides: dict | None = None) -> Recipe:
    """Recipe from a file or the name of a shipped recipe, with `overrides` (key -> text or value) on top.

    UsageError lists every unknown key, wrong type and value out of range, with the file and a suggestion.
    """
    file = find(source)
    if (size := file.stat().st_size) > document.LARGEST:
        raise UsageError(f"{file}: {size} bytes; a recipe is a page of text, at most {document.LARGEST}")
    try:
        values = document.parse(file.read_text(encoding="utf-8-sig"), str(file))
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text (byte {error.start})") from error
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise UsageError(f"{file}: a recipe is a mapping of keys to values, got {type(values).__name__}")
    problems: list[str] = []
    clean = _typed(values, str(file), problems)
    given = _from_flags(overrides or {}, problems)
    clean.update(_typed(given, "command line", problems, prefix="--"))
    recipe = Recipe(**clean)
    for name, problem in out_of_range(recipe).items():
        if name in clean or name in ("task", "model"):
            said = f"command line: --{name.replace('_', '-')}" if name in given else f"{file}: {name}"
            problems.append(f"{said}: {problem}")
    if problems:
        raise UsageError("\n".join(problem[:1000] for problem in problems))
    return recipe


def _from_flags(flags: dict, problems: list[str]) -> dict:
    """Flags are text: read as YAML, but where the key takes text anyway."""
    kinds, values = typing.get_type_hints(Recipe), {}
    for name, value in flags.items():
        plain = not isinstance(value, str) or not value or kinds.get(name) is str
        try:
            values[name] = value if plain else document.parse(value, f"command line: --{name}")
        except UsageError as error:
            problems.append(str(error))
    return values


def out_of_range(recipe: Recipe) -> dict[str, str]:
    """{key: what is wrong with its value}, for every key."""
    from zoo import inference, registry

    rules = {
        "task": (recipe.task in TASKS, f"one of {', '.join(TASKS)}"),
        "augment": (recipe.augment in AUGMENT, "none, light, medium or strong"),
        "balance": (recipe.balance in ("none", "sampler", "weights"), "none, sampler or weights"),
        "metric": (recipe.metric in ("rmse", "mae"), "rmse or mae"),
        "scaling": (recipe.scaling in ("standard", "rows", "none"), "standard, rows or none"),
        "neighbours": (all(size.lstrip("-").isdecimal() and len(size) < 10 and int(size) >= -1 for size in recipe.neighbours),
                       "integers, -1: all"),
        "strategy": (recipe.strategy in ("auto", "ddp", "fsdp"), "auto, ddp or fsdp"),
        "stream": (recipe.stream in ("auto", "always", "never"), "auto, always or never"),
        "precision": (recipe.precision in ("auto", "bf16", "fp32"), "auto, bf16 or fp32"),
        "val": (isinstance(recipe.val, str) or 0 < recipe.val < 1, "a fraction between 0 and 1, or the name of a split"),
        "label_smoothing": (0 <= recipe.label_smoothing < 1, "0 <= x < 1"),
        "ema": (0 <= recipe.ema < 1, "0 <= x < 1"),
        "first_caption": (0 <= recipe.first_caption <= 1, "0 <= x <= 1"),
        "warmup": (0 <= recipe.warmup < 1, "0 <= x < 1"),
        "layer_decay": (0 < recipe.layer_decay <= 1, "0 < x <= 1"),
        "teacher": (not recipe.teacher or recipe.task in TAUGHT, f"with one of {', '.join(TAUGHT)} only"),
        "teacher_share": (0 <= recipe.teacher_share <= 1, "0 <= x <= 1"),
        "map_layers": (recipe.map_layers in ("last", "all"), "last or all"),
        "loss": (recipe.loss in ("softmax", "sigmoid"), "softmax or sigmoid"),
        "soft_targets": (0 <= recipe.soft_targets < 1 and (not recipe.soft_targets or recipe.loss == "softmax"),
                         "0 <= x < 1, and 0 with loss: sigmoid, which has no target to share"),
        "unfreeze_from": (recipe.unfreeze_from >= -1, ">= -1"),
        "lr": (recipe.lr > 0, "> 0"),
        "temperature": (recipe.temperature > 0, "> 0"),
    }
    rules |= {name: (getattr(recipe, name) >= 1, ">= 1") for name in ("epochs", "batch_size", "buffer", "accumulate", "parts")}
    rules |= {name: (getattr(recipe, name) >= 0, ">= 0") for name in
              ("bank", "lora", "patience", "workers", "clip", "weight_decay", "seed", "mixup", "map_weight")}
    found = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    rules |= {name: (isfinite(value), "a finite number") for name, value in found.items() if isinstance(value, float)
              and not isfinite(value)}
    rules |= {name: (False, f"<= {most}") for name, most in AT_MOST.items() if found[name] > most}
    problems = unfit(recipe)
    problems |= {name: f"{getattr(recipe, name)!r}; must be {want}" for name, (ok, want) in rules.items() if not ok}
    try:
        spec = registry.find(recipe.model)
    except ValueError as error:
        return {**problems, "model": str(error)}
    wanted = TASKS.get(recipe.task, spec.modality)
    if spec.modality != wanted:
        return {**problems, "model": f"{recipe.model} is of modality {spec.modality}; {recipe.task} needs one of "
                                     + ", ".join(registry.names(f"{wanted}_*"))}
    try:
        inference.preprocessing(spec.modality)({**spec.preprocess.get("image", spec.preprocess), **recipe.preprocess})
    except ValueError as error:
        problems["preprocess"] = str(error)
    return problems


def folder() -> Path:
    """Where the shipped recipes lie: the repository, or inside the installed package."""
    package = Path(__file__).parent.parent
    beside = package.parent / "recipes"
    return beside if (beside / "image_scratch.yaml").exists() else package / "_recipes"


def shipped() -> dict[str, Path]:
    return {file.stem: file for file in sorted(folder().glob("*.yaml"))}


def find(source: str | Path) -> Path:
    """The file of a recipe: a path, or the name of a shipped one. UsageError suggests the nearest."""
    if Path(source).is_file():
        return Path(source)
    known = shipped()
    if str(source) in known:
        return known[str(source)]
    near = get_close_matches(str(source), known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"recipes: {', '.join(known)}"
    raise UsageError(f"{source}: no such recipe file or name; {hint}")


def _typed(values: dict, source: str, problems: list[str], prefix: str = "") -> dict:
    known, clean = typing.get_type_hints(Recipe), {}
    for name, value in values.items():
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else "; see: zoo recipes --keys"
            problems.append(f"{source}: unknown key {prefix}{name}{hint}")
            continue
        try:
            clean[name] = cast(value, known[name])
        except (TypeError, ValueError, OverflowError):
            problems.append(f"{source}: {prefix}{name}: expected {say(known[name])}, got {value!r}")
    return clean


def keys() -> list[tuple[str, str, str]]:
    """(key, default, meaning) of every recipe key: the table of the README and of `zoo recipes --keys`."""
    rows = []
    for f in fields(Recipe):
        default = f.default if f.default is not MISSING else f.default_factory()
        rows.append((f.name, "" if default in ("", [], {}) else str(default), f.metadata["about"]))
    return rows
