"""Operations on snapshots."""
