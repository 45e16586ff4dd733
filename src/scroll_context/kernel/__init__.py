"""The kernel: a Python namespace that lives across model calls, in a jailed process.

kernel        Kernel: start, execute, interrupt, digest, save, restore, close     host
incarnation   one worker process, driven with deadlines; the interrupt ladder     host
connection    the host's end of the wire                                          host
broker        capability calls of cells, run in threads                           host
manifest      pickles as opaque bytes, to the blob store and back                 host
namespace     every variable with its origin; the digest                          host
launch        zygotes: who owns the processes                                     host
texts         what the model reads about a cell                                   host
zygote        forks workers                                                       between
worker        takes requests inside the jail                                      worker
cell, output, interrupts, channel, describe, snapshot                             worker
wire, messages, values, process, results                                          both
jail          what stands between a worker and everything else
"""
