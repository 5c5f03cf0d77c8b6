"""The way in: batches are logged, synced, acknowledged, cut into segments and inserted exactly once."""
