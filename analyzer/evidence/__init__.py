"""What counters, health readings, events and probes say for or against a part."""
