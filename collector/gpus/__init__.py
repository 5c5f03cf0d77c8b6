"""GPUs as NVML tells of them."""
