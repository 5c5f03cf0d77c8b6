"""The dashboard: what each page shows, gathered from readings and control state, and rendered on the server."""
