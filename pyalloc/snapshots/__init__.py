"""Snapshots of where the memory is: taken, kept in files, converted, drawn, compared, and the watch for leaks.

model: what a snapshot is, and its file. reading: reads the file. capture: takes one of this process. control_socket:
takes one of another. torch_pickle and page: for torch's viewer and for a browser. comparison: what grew between two.
leak_watch: what keeps growing. commands: `pyalloc snapshot` and `pyalloc diff`.
"""
