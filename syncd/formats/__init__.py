"""The file formats that teams have checkpoints in already. Each module has `read` and `write`.

Those are pure: text in, checkpoints out, and the reverse; `update` changes one file. Who finds the
files, keeps them apart and watches them stands above.
"""
