"""The two errors a user is expected to meet; the command line prints them without a traceback."""


class ZooError(ValueError):
    """Expected failure. The message has one or two lines: the file, argument or key, the value seen, the way out."""


class UsageError(ZooError):
    """Wrong usage or a wrong recipe (exit code 2)."""
