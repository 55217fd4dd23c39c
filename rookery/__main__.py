"""`python -m rookery` is the command `rookery`."""

import os
import sys

import rookery

# Python prepends the current folder, but the command does not have it: files in it must not be imported by accident.
if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(rookery.__file__)):
    del sys.path[0]

from rookery.cli import main

if __name__ == "__main__":
    sys.exit(main())
