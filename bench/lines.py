"""The lines of the table, and what each is held against."""

from __future__ import annotations

RAW_WRITE, RAW_READ, RAW_READ_10 = "raw commit", "raw read", "raw read 10"
CREATE, UPDATE = "syncd create", "syncd update"
CREATE_UNREDACTED = "syncd create, no redaction"
CREATE_AT_REST, CREATE_END_TO_END = "syncd create, at rest", "syncd create, end to end"
LATEST, LATEST_DOCUMENT, HISTORY = "syncd latest", "syncd latest document", "syncd history 10"
PUT, PUT_ENVELOPE = "LangGraph put", "LangGraph put + envelope"
PUT_DEFAULTS = "LangGraph put, its defaults"
GET_TUPLE, LIST_10 = "LangGraph get_tuple", "LangGraph list 10"
SAVER_PUT, SAVER_GET, SAVER_LIST = "SyncdSaver put", "SyncdSaver get_tuple", "SyncdSaver list 10"

WRITES = (RAW_WRITE, CREATE, CREATE_UNREDACTED, CREATE_AT_REST, CREATE_END_TO_END, UPDATE,
          SAVER_PUT, PUT, PUT_DEFAULTS, PUT_ENVELOPE)  # fmt: skip
# For each line, the lines that it is held against: bare SQLite's and LangGraph's.
REFERENCES = {
    **dict.fromkeys(WRITES, (RAW_WRITE, PUT)),
    **dict.fromkeys(
        (RAW_READ, LATEST, LATEST_DOCUMENT, SAVER_GET, GET_TUPLE), (RAW_READ, GET_TUPLE)
    ),
    **dict.fromkeys((RAW_READ_10, HISTORY, SAVER_LIST, LIST_10), (RAW_READ_10, LIST_10)),
}
