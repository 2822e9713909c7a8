"""Version of the package."""

__version__ = "0.3.0"
# URL of the public repository, used for links in pages. Empty until the repository is public.
__url__ = ""
