"""Runs: stores of the steps of one training job."""
