"""What is known of an NCCL connection, source by source."""
