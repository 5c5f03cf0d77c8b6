"""Real parts to test against on one machine: today a ClickHouse server and a network that misbehaves on demand."""
