"""Studies: from a sweep file or Python to tables, figures and a page. The library imports nothing of it."""
