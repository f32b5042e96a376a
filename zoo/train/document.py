"""YAML that anybody may have written: a page of plain values, every key once; whatever it is not is said in one line."""

from zoo.errors import UsageError

LARGEST = 2**20  # bytes; ours are 1 KB
MOST, DEEPEST = 10_000, 40  # values with every alias written out, and mappings within each other


def parse(text: str, source: str):
    """The value of a YAML document; no tag makes anything but plain values. UsageError: `source`, the line, what is wrong."""
    import yaml

    if len(text) > LARGEST:
        raise UsageError(f"{source}: {len(text)} characters; a recipe is a page of text, at most {LARGEST}")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _weigh(node, {}, ())  # before construct_document, in which merge keys (<<) write aliases out
        value = None if node is None else loader.construct_document(node)
        _plain(value)
        return value
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # YAML's constructors trip in many ways over values that their tag or look does not fit: 2020-99-99, !!bool x
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where else ""
        why = getattr(error, "problem", None) or ("nested too deeply" if isinstance(error, RecursionError) else str(error))
        raise UsageError(f"{source}{line}: not valid YAML: {' '.join(str(why).split())[:200]}") from error


def _weigh(node, known: dict, above: tuple) -> int:
    """Values below `node` with every alias written out: ten lines of aliases of aliases can stand for billions."""
    import yaml

    if id(node) in above:
        raise yaml.MarkedYAMLError(problem="a value that holds itself, by an alias", problem_mark=node.start_mark)
    if len(above) > DEEPEST:
        raise yaml.MarkedYAMLError(problem=f"more than {DEEPEST} levels deep", problem_mark=node.start_mark)
    if id(node) in known:
        return known[id(node)]
    inside = getattr(node, "value", ())
    count = 1
    if isinstance(node, yaml.MappingNode):
        _once(node)
        inside = [part for pair in inside for part in pair]
    if isinstance(node, yaml.CollectionNode):
        count += sum(_weigh(part, known, (*above, id(node))) for part in inside)
    if count > MOST:
        raise yaml.MarkedYAMLError(problem=f"more than {MOST} values, aliases written out", problem_mark=node.start_mark)
    known[id(node)] = count
    return count


def _once(node) -> None:
    """YAML itself takes the last of two equal keys, and the first is lost in silence."""
    import yaml

    seen = set()
    for key, _ in node.value:
        if isinstance(key.value, str) and key.value in seen and key.value != "<<":
            raise yaml.MarkedYAMLError(problem=f"key {key.value[:40]!r} is there twice", problem_mark=key.start_mark)
        seen |= {key.value} if isinstance(key.value, str) else set()


def _plain(value) -> None:
    """ValueError for what a card, which is JSON, cannot keep."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, (str, int, float)):
                raise ValueError(f"key {str(key)[:40]!r} is a {type(key).__name__}; keys are names")
            _plain(part)
    elif isinstance(value, list):
        for part in value:
            _plain(part)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer of more than 64 bits")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"a {type(value).__name__}, {str(value)[:40]!r}; put it in quotes if it is text")
