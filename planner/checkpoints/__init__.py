"""Which checkpoints a job can come back from, what loading one costs, how often to save, and when to wait for one."""
