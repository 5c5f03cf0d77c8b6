"""The portable case file: a directory, or a .tar.zst of it, that holds any subset of the tables."""
