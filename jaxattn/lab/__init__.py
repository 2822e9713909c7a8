"""Studies, from a sweep file or Python to tables, figures and reports; the library does not import it."""
