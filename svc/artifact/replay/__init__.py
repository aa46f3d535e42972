"""Protection against replay: how new an artifact says it is, what was served before, and what is refused."""
