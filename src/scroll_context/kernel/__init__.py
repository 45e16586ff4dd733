"""The kernel: a Python namespace that lives across model calls, in a jailed process.

kernel          Kernel: start, execute, interrupt, digest, save, restore, close         host
worker_process  one worker, driven with deadlines and interrupts                        host
connection      the host's end of the wire, and the capability calls of cells           host
variables       every variable with its origin, the digest, the pickles as opaque bytes host
launcher        the processes: fork server, workers, signals                            host, fork server
observation     what the model reads about a cell                                       host
doctor          which jail this machine gives                                           host
worker          takes requests inside the jail                                          worker
cell, interrupts, channel, describe, snapshot                                           worker
protocol, codec, results                                                                both
jail            what stands between a worker and everything else
"""
