"""python -m zoo"""

from zoo.cli import entry

entry()
