"""Ways in which a `hashCode` joins the hashes of fields, as numbers for the kernel."""

from __future__ import annotations

CHAIN, XOR_CHAIN, SUM, XOR, SCALA, SCALA_NAMED = range(6)
