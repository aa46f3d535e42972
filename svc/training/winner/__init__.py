"""The winner of a search: measured, trained again on all data, exported and published."""
