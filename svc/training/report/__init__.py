"""The HTML report of a training."""
