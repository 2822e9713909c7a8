"""Studies: from a sweep file to a table."""
