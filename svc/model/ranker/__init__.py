"""The learned order of the first page: what is known of items, the features of a page, and their weighted sum."""
