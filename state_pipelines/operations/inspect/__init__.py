"""`inspect`: what a snapshot holds."""
