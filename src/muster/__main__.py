"""Run the `muster` command as `python -m muster`."""

from muster.cli.main import main

if __name__ == "__main__":
    main()
