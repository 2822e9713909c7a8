"""Definition of studies: sweep files, their settings and grids, custom code, and dry runs."""
