"""``python -m nemostream`` is the command ``nemostream``."""

import sys

from nemostream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
