"""What is ranked for a request, and the rules that arrange it."""
