"""A task's evidence in one file, and whether such a file is what it says.

Each entry is connected with the next signature of its device. Where entries of other tasks lie
between, those are there as *links*: header and hash, no content. Checking needs no database and no
home.
"""

from syncd.bundle.check import Verdict, trusted, verify_file
from syncd.bundle.export import Exported, export

__all__ = ["Exported", "Verdict", "export", "trusted", "verify_file"]
