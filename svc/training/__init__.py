"""From interactions to a signed artifact."""
