"""Tests of the training jobs on the testbed."""
