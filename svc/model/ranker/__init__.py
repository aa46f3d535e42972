"""The learned order of the first page: the item record, the features of a page, and their weighted sum."""
