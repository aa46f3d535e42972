"""The ranker, a learned order of the best items: facts about items, features made from them, and their weighted sum."""
