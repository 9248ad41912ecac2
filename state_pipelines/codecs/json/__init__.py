"""Values as JSON, as `dump` prints them."""
