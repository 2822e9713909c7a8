"""The two ways a command can end badly, each one line that names the place and the remedy."""


class _OneLine(Exception):
    def __str__(self) -> str:
        # Names that users give may hold line breaks.
        return super().__str__().replace("\r", "\\r").replace("\n", "\\n")


class InputError(_OneLine, ValueError):
    """Something the user gave is wrong: a key, a value, a file. Exit status 2."""


class RunError(_OneLine, RuntimeError):
    """Something failed while running: a full disk, a folder in the way, NaN everywhere. Exit status 1."""
