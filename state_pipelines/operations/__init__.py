"""What people do with snapshots: one module per operation."""
