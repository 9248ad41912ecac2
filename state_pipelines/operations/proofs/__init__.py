"""Results of proofs, and the records that differ."""
