"""What breaks a testbed on command, in the words of a scenario's timeline, and heals it again."""
