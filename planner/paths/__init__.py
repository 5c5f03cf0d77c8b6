"""Which path each large flow takes: the least loaded ones, around what is broken."""
