"""Definition of studies: sweep files, settings, grids, custom code, and dry runs."""
