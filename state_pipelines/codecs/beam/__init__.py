"""Values of Apache Beam's coders."""
