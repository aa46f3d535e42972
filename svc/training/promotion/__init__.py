"""Whether a new model may go live: the comparison with the live model and with popularity."""
