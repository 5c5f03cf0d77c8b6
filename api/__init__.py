"""Everything that people and programs talk to: the HTTP API, the ingest gateway, the first page."""
