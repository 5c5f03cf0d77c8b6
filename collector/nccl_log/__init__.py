"""NCCL's own log: files, lines, and the story they tell."""
