"""Small real training jobs: a pipeline that outlives its workers, and one that resumes on another number of ranks."""
