"""What a model cannot do, as far as its card tells."""

from zoo.card import Card


def limits(card: Card) -> list[str]:
    """Sentences for the model card."""
    found = [*_answers(card), *_inputs(card)]
    splits = {entry["split"] for entry in card.scores}
    if not splits:
        found.append("No score is stored: measure it on data of your own (`zoo eval`) before you rely on it.")
    elif "test" not in splits:
        found.append("No score on a test split is stored; the validation score was used to choose these weights.")
    else:
        found.append("The scores hold for data like that of the test split, and for one seed; on other data measure first "
                     "(`zoo eval`).")
    found.append("Nobody has checked it for decisions about people.")
    return found


def _answers(card: Card) -> list[str]:
    if card.modality == "text_image":
        return ["Its vectors know the kind of pictures and words it was trained on. A match score tells the better of two texts; "
                "it is no calibrated probability."]
    if card.head == "label" and card.labels:
        return [f"It always answers with one of its {len(card.labels)} labels: what is none of them gets one too, at times with "
                "a high probability."]
    if card.head == "values" and card.targets:
        spans = [f"{t['name']} {t['mean']:.3g} +- {t['std']:.3g}{' ' + t['unit'] if t['unit'] else ''}" for t in card.targets]
        return [f"It was trained around {', '.join(spans)} (mean, deviation); far from there it extrapolates."]
    return []


def _inputs(card: Card) -> list[str]:
    steps = card.preprocess
    found = []
    picture = steps.get("image", steps) if card.modality in ("image", "text_image") else {}
    if "size" in picture:
        height, width = picture["size"]
        lost = "what lies outside the centre is cut off" if picture.get("fit", "crop") == "crop" else "nothing is cut off"
        found.append(f"Pictures are brought to {height} x {width} pixels first: finer detail is lost, {lost}.")
    if card.modality == "audio":
        found.append(f"Sounds are mixed to one channel of {steps['rate']} Hz: nothing above {steps['rate'] / 2:g} Hz is heard.")
    if card.modality == "graph" and steps.get("source") == "smiles":
        found.append("It sees a molecule as a graph, without coordinates; what its tables do not hold counts as unknown.")
    if card.arguments.get("level") == "node":
        found.append("It was trained on one graph; another one needs the same columns.")
    text = steps.get("text", steps) if card.modality in ("text", "text_image") else {}
    if "max_length" in text:
        found.append(f"Texts are cut to {text['max_length']} tokens; tokenizer and vocabulary are those of {text['tower']}.")
    return found
