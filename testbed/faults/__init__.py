"""What breaks a testbed on command, in the words of a story's timeline, and heals it again."""
