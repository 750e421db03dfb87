"""Which header and which section of a page is which field of a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

from syncd.vocabulary import CheckpointStatus

Field = tuple[str, str]

COMPLETED = ("execution_state", "completed_items")
PENDING = ("execution_state", "pending_items")
BLOCKED = ("execution_state", "blocked_items")
CURRENT = ("execution_state", "current_step")
STATE = ("context_summary", "state")
FINDINGS = ("context_summary", "findings")
RESUME = ("recovery", "resume_instructions")
ESCALATION = ("recovery", "escalation")

AGENT = ("metadata", "agent_id")
MISSION = ("metadata", "mission")
STATUS = ("execution_state", "status")
RAW = ("execution_state", "raw")
SERIES = ("metadata", "series")
TIMESTAMP = ("metadata", "timestamp")
CONTEXT_USED = ("metrics", "context_used_percent")
ONE_LINE_HEADERS = frozenset({"Status", "Checkpoint", "Timestamp", "Context Used", "Previous"})
# Beyond S2's own headers, what a reader wants to see at the top.
MORE_HEADERS = {
    "Task": ("metadata", "task_id"),
    "Phase": ("execution_state", "phase"),
    "Stage": ("execution_state", "stage"),
    "Focus": ("execution_state", "current_focus"),
    "Error": ("execution_state", "error"),
}

STATUS_WORDS = {
    status.value: status.value.replace("_", " ").title() for status in CheckpointStatus
} | {CheckpointStatus.COMPLETE.value: "Completed"}


class ListSection(NamedTuple):
    """A section that is a list. Where its items may have details, `key` is what their text is."""

    title: str
    field: Field
    key: str = ""
    numbered: bool = False


CHAIN = ListSection("Chain Summary", ("context_summary", "chain_summary"))
NEXT_STEPS = ListSection("Next Steps", ("execution_state", "next_steps"), numbered=True)
CONTEXT = (
    ListSection("Decisions", ("context_summary", "key_decisions"), key="decision"),
    ListSection("Assumptions", ("context_summary", "assumptions")),
    ListSection("Constraints", ("context_summary", "constraints")),
    ListSection("Dependencies", ("context_summary", "external_dependencies")),
    ListSection("Files Modified", ("metrics", "files_modified")),
)
LISTS = {each.title.lower(): each for each in (CHAIN, NEXT_STEPS, *CONTEXT)}

# The titles below Progress, and what the text of their items is.
DONE, DOING, TO_DO = "Completed", "In Progress", "Remaining"
PROGRESS = {DONE: "step", DOING: "description", TO_DO: "step"}
BLOCKER_COLUMNS = {
    "description": "Blocker",
    "impact": "Impact",
    "resolution_path": "Resolution Path",
}
ESCALATION_HEADERS = {"to": "To", "reason": "Reason", "decision_needed": "Decision Needed"}

# What the page has no place for stands in a block of its own.
RECORD, RECORD_FENCE = "Record", "```json syncd"
FOOTER = "*Checkpoint written by "
# The field for what nobody here knows: other headers and sections, and texts between them.
UNKNOWN = "markdown"
# What a page said of the one before it, in that field.
PREVIOUS = "previous"
