"""Reports and other self-contained pages: text, tables and figures as HTML, Markdown and LaTeX."""
