"""`erase`: a snapshot without some keys."""
