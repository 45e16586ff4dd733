"""The kernel: a Python namespace that lives across model calls, in a jailed process.

On the host:

* kernel: `Kernel`, which starts, runs cells, interrupts, lists variables, saves, restores, closes;
* worker_process: one worker, driven with deadlines and interrupts;
* launcher, process: the fork server, and the processes that it starts;
* broker: the host's end of the wire, and the capability calls of cells;
* variables, cell_source: each variable with its origin, and what sources tell of it;
* saving: pickles as opaque bytes, between a worker and the blob store.

In the worker, inside the jail:

* worker: takes requests and answers them;
* channel: the worker's end of the wire, and interrupts;
* cell: runs one cell, and sends on what it prints;
* describe, snapshot: what variables look like, and their pickles.

On both sides:

* frames, values, protocol: bytes on the wire, the values in them, and the messages;
* names: the names that a source reads and binds;
* results: what a user of a kernel sees, and what the model reads about a cell.

The jail around a worker is the package `jail`.
"""
