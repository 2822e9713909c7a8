"""The two ways a command can end badly, each one line that names the place and the remedy."""


class InputError(ValueError):
    """Something the user gave is wrong: a key, a value, a file. Exit status 2."""


class RunError(RuntimeError):
    """Something failed while running: a full disk, a folder in the way, NaN everywhere. Exit status 1."""
