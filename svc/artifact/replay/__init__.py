"""Protection against replay: serials and expiry of artifacts, the highest served serials, and the check."""
