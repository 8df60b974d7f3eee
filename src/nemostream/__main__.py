"""``python -m nemostream`` and the command ``nemostream``."""

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command line; imported here, so that Ctrl-C during the imports is quiet as well."""
    try:
        from nemostream.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
