"""The `zoo` command. Results on stdout, progress on stderr; exit 0 done, 1 failed, 2 wrong usage or recipe, 130/143 stopped."""

import sys
import warnings

import cyclopts

from zoo import crew
from zoo.commands import bench, convert, export, index, models, train, use  # noqa: F401  (each adds its commands to app)
from zoo.commands.app import app, one_process
from zoo.errors import UsageError, ZooError


def main(tokens: list[str] | None = None) -> int:
    """Runs one command; returns the exit code. Expected errors are one or two lines on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name still gets its line
    try:
        one_process(sys.argv[1:] if tokens is None else tokens)
        result = app(tokens, exit_on_error=False, print_error=True, result_action="return_value")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except cyclopts.CycloptsError:
        return 2
    except ZooError as error:
        if crew.speaks(error):
            print(f"error: {error}", file=sys.stderr, flush=True)
        else:
            crew.linger()
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:  # the reader of the pipe has left: `zoo list | head`
        sys.stderr.close()
        return 1
    except OSError as error:  # not writable, disk full, output closed
        print(f"error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def entry() -> None:
    """The installed command: expected warnings are one line, not Python's two."""
    warnings.formatwarning = lambda message, *_rest, **_more: f"note: {message}\n"
    sys.exit(main())
