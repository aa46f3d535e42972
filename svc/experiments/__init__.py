"""Experiments: reading of the served log and of events, and the comparison of the arms."""
