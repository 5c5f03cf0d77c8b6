"""Pictures as SVG, drawn on the server: they print, scale, and need no script."""
