"""The folders of a user for the files of programs, as the XDG specification names them."""

import os


def user_folder(variable: str, default: str) -> str:
    """The folder `scroll` below the one that a variable names, or below the default in the home
    folder.

    The specification says to ignore a relative path. It would mean a folder of whatever repository
    the command is called in.
    """
    folder = os.environ.get(variable, "")
    base = folder if os.path.isabs(folder) else os.path.join(os.path.expanduser("~"), default)
    return os.path.join(base, "scroll")


def config_folder() -> str:
    return user_folder("XDG_CONFIG_HOME", ".config")


def data_folder() -> str:
    return user_folder("XDG_DATA_HOME", ".local/share")


def state_folder() -> str:
    return user_folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> str:
    return user_folder("XDG_CACHE_HOME", ".cache")
