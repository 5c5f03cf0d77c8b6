"""The `lockstep` command: one file per group of commands, each putting parts together and holding no logic."""
