"""In-job recovery for PyTorch programs: `from lockstep.training.replica import Replica`; extra `training`."""
