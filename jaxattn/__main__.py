"""`python -m jaxattn` is `jaxattn`."""

from jaxattn.cli import main

if __name__ == "__main__":
    main()
