"""What YAML and flags give, as the types that recipe keys have."""

import types
import typing


def cast(value, kind):
    """The value as `kind`, the type of a recipe key. TypeError or ValueError where it is none."""
    if isinstance(kind, types.UnionType):
        for option in typing.get_args(kind):
            try:
                return cast(value, option)
            except (TypeError, ValueError):
                continue
        raise ValueError
    origin = typing.get_origin(kind) or kind
    if origin is list:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            value = [value]  # --hold-out 1
        if not isinstance(value, list):
            raise TypeError
        if any(isinstance(part, (dict, list)) for part in value):
            raise TypeError
        return [str(part) for part in value]
    if origin is float and (isinstance(value, (int, str)) and not isinstance(value, bool)):
        return float(value)  # YAML reads 1e-3 as text
    if origin is str and value is None:
        return ""
    if origin is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, origin) or origin is int and isinstance(value, bool):
        raise TypeError
    return value


def say(kind) -> str:
    """The kind in words."""
    if isinstance(kind, types.UnionType):
        return " or ".join(say(option) for option in typing.get_args(kind))
    names = {float: "a number", int: "an integer", str: "text", bool: "true or false", dict: "a mapping"}
    return names.get(kind, "a list")
