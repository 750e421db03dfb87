"""The file formats that teams have checkpoints in already. Each module has `read` and `write`.

Pure: text in, checkpoints out, and the reverse. Who finds the files, keeps them apart and watches
them stands above.
"""
