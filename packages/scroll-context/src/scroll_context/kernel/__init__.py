"""The kernel: a Python namespace that lives across model calls, in a jailed process.

kernel          Kernel: start, execute, interrupt, digest, save, restore, close         host
worker_process  one worker, driven with deadlines and interrupts                        host
connection      the host's end of the wire, and the capability calls of cells           host
variables       every variable with its origin, the digest, the pickles as opaque bytes host
launcher        the processes: fork server, workers, signals                            host, fork
server worker          takes requests inside the jail
worker cell            runs one cell: its streams, its failure, the names that it touched
worker channel         the worker's end of the wire, and interrupts
worker snapshot        what variables look like, and their pickles
worker protocol        frames, values and messages                                             both
results         what a kernel's user sees, and what the model reads about a cell        both jail
what stands between a worker and everything else
"""
