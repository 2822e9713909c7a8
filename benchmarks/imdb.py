"""Argparse type for the folder of IMDB reviews."""

import argparse
import os

import jaxattn as ja
from jaxattn.core.errors import InputError


def folder_of_imdb(path: str) -> str:
    """Return the absolute folder; argparse prints one line if something is missing in it."""
    path = os.path.abspath(os.path.expanduser(path))
    try:
        ja.data.Tfds(dataset="imdb_reviews", data_dir=path).files()
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).replace("data.data_dir", "--data-dir")) from None
    return path
