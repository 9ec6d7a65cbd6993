"""`python -m soundingline.experiments COMMAND` is the same as `soundingline COMMAND`."""

from soundingline.experiments.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
