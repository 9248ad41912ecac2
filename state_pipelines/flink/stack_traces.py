"""Java stack traces in answers of Flink: chains of causes, and the reasons of failed checkpoints in them."""

from __future__ import annotations

import re

from state_pipelines.checkpoints.coordinator import FailureReason

_FRAME = re.compile(r"\s+(?:at \S|\.\.\. \d+ )")
_PREFIX = re.compile(r"(?:\s*Caused by: |\[?<?Exception on server side:\s*)+")
# Wrappers that say nothing themselves.
_WRAPPER = re.compile(
    r"(?:java\.util\.concurrent\.(?:CompletionException|ExecutionException)"
    r"|org\.apache\.flink\.util\.SerializedThrowable"
    r"|org\.apache\.flink\.runtime\.rest\.handler\.RestHandlerException): (?=[\w.$]+(?:Exception|Error)\b)"
)
_REMARKS = ("End of exception on server side>", "Internal server error.")
_MOST_TEXT = 1 << 20
_MOST_CAUSE = 2000
_CLASS = re.compile(r"^(?:[\w$]+\.)+([\w$]+)(?:: |$)")


def list_causes(text: str) -> list[str]:
    """The chain of causes of a stack trace, outermost first, without stack frames and without repetitions."""
    causes: list[str] = []
    for line in text[:_MOST_TEXT].splitlines():
        if _FRAME.match(line) or not line.strip() or line.strip() in _REMARKS:
            continue
        is_new = not causes or _PREFIX.match(line) is not None or _CLASS.match(line) is not None
        words = _PREFIX.sub("", line, count=1).strip()
        while (shorter := _WRAPPER.sub("", words, count=1)) != words:
            words = shorter
        if not words:
            continue
        if is_new:
            causes.append(words[:_MOST_CAUSE])
        elif len(causes[-1]) < _MOST_CAUSE:
            # A message of several lines.
            causes[-1] = f"{causes[-1]} {words}"[:_MOST_CAUSE]
    return list(dict.fromkeys(causes))


def find_root_cause(text: str) -> str:
    """The innermost cause of a stack trace, without the package of its class; empty where there is no text."""
    causes = list_causes(text)
    return (
        _CLASS.sub(lambda match: f"{match[1]}: " if match[0].endswith(": ") else match[1], causes[-1]) if causes else ""
    )


def find_failure_reason(text: str) -> FailureReason | None:
    """The reason of a failed checkpoint in Flink's words; None where they name none.

    Source: `CheckpointException`, whose message ends with that of its `CheckpointFailureReason`.
    """
    found = [(text.find(each.message), -len(each.message), each) for each in FailureReason if each.message in text]
    return min(found, key=lambda each: each[:2])[2] if found else None
