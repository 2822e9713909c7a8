"""Definition of studies: sweep files, settings and grids, custom code, and dry runs."""
