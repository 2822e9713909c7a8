"""Argparse type for the folder that contains the IMDB reviews."""

import argparse
import os

import jaxattn as ja
from jaxattn.core.errors import InputError


def folder_of_imdb(path: str) -> str:
    """Return the absolute path of a folder, or raise ArgumentTypeError if a dataset file is missing."""
    path = os.path.abspath(os.path.expanduser(path))
    try:
        ja.texts.Tfds(dataset="imdb_reviews", data_dir=path).files()
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).replace("data.data_dir", "--data-dir")) from None
    return path
