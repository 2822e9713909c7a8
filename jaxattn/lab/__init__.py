"""Define studies in a sweep file or in Python, run them, and produce tables, figures and reports.

The core library does not import this package.
"""
