"""MkDocs hook: a built page must not load anything from another host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import Abort

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'>\s]+)"""
    r"""|<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'>\s]+)"""
    r"""|(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)"""
)


def on_post_build(config: MkDocsConfig) -> None:
    """Abort when a page or a style sheet loads a resource by an absolute URL."""
    found = {
        f"{path.relative_to(config.site_dir)}: {next(filter(None, match.groups()))}"
        for path in Path(config.site_dir).rglob("*")
        if path.suffix in {".html", ".css"}
        for match in LOADED.finditer(path.read_text(encoding="utf-8"))
    }
    if found:
        raise Abort("the site loads resources from other hosts:\n" + "\n".join(sorted(found)))
