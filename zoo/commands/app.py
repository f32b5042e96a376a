"""The command line application, and how its commands answer."""

import json
from typing import Annotated

import cyclopts
from cyclopts import Parameter

import zoo

app = cyclopts.App(name="zoo", help="The `zoo` command: models, recipes and search.", version=zoo.__version__)
Flag = Annotated[bool, Parameter(negative=())]


def out(value, as_json: bool, text) -> None:
    print(dumps(value) if as_json else text())


def dumps(value) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    try:
        text.encode()
        return text
    except UnicodeEncodeError:  # a file name that is no UTF-8
        return json.dumps(value, indent=2, default=str)
