"""Which road each large flow takes: the least loaded ones, around what is broken."""
