"""The version, in a file that imports nothing, so that build tools and the CLI can read it."""

__version__ = "0.1.0.dev0"
