"""The command `bpg`: each verb parses, calls one function and prints."""

from bpg.cli.app import main

__all__ = ["main"]
