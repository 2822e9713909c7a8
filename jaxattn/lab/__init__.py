"""Studies: run from a sweep file or Python, and turned into tables, figures and reports.

The library does not import this package.
"""
