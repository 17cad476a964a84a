"""The command line: ``python -m gradus`` is equivalent to ``gradus``."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command line with the arguments of this process, and return its exit code."""
    # This import comes first: child processes that render chat templates start here, many times.
    from gradus import _native

    # The command line handles Ctrl-C itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
