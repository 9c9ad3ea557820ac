"""``python -m paceline``: the command ``paceline``."""

from paceline.cli.main import main

if __name__ == "__main__":
    main()
