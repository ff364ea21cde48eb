"""Run the command line with `python -m pfl_lite`."""

from pfl_lite.cli import main

if __name__ == "__main__":
    main()
