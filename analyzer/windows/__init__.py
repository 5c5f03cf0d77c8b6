"""What every question is asked about: jobs, their processes, and the windows that are evaluated."""
