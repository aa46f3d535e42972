"""From signed artifacts to answers over HTTP."""
