"""Who was late: each rank's own time between operations, held against ranks that do the same work."""
