"""Keys that the task of a recipe has no use for, and why: refused, not left unread."""

LABELLED = ("image_classification", "audio_classification", "audio_tagging", "graph_classification", "node_classification")
BLENDED = ("image_classification", "audio_classification", "audio_tagging")


def unfit(recipe) -> dict[str, str]:
    """{key: its value and why the task cannot use it} of a zoo.train.recipe.Recipe."""
    task, found = recipe.task, {}
    if recipe.balance != "none" and task not in LABELLED:
        found["balance"] = f"{recipe.balance}; {task} has no classes that could come equally often"
    elif recipe.balance == "sampler" and task not in BLENDED:
        found["balance"] = "sampler; graphs come in batches of like size, each once, and one big graph comes whole: take weights"
    if recipe.label_smoothing and task not in LABELLED:
        found["label_smoothing"] = f"{recipe.label_smoothing:g}; {task} has no labels to smooth"
    if recipe.mixup and task not in BLENDED:
        found["mixup"] = f"{recipe.mixup:g}; pictures and sounds with labels can be blended, {task} has none: take 0"
    return found
