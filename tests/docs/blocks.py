"""The fenced code blocks of a Markdown page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NOT_RUN = "Not run in the tests: "
"""Beginning of the title of a block that cannot run on a machine of its own; the reason follows."""

_FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r' title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: file of the page.
        line: of its fence, from 1.
        language: the word behind the fence.
        title: shown above the block: the name of a file, or why it is not run.
        text: the code.
    """

    page: Path
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether the tests run the block or check its content."""
        return not self.title.startswith(NOT_RUN)


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    content = page.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(content):
        indent, language, options, text = match.groups()
        title = _TITLE.search(options)
        line = content.count("\n", 0, match.start()) + 1
        code = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        blocks.append(Block(page, line, language, title[1] if title else "", code))
    return blocks


def remove_blocks(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))
