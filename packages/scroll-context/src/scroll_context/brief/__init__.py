"""A brief: the few earlier events that bear on a prompt, found without a model and offered without
being asked for.

    brief        the brief of a prompt, and the brief of a file or command about to be used
    relevance    what of the history bears on a text, or nothing, and where it is read from
    deeds        what was done before: files touched, commands run, errors met

A coding assistant waits for its prompt hook, so these modules import neither the store nor msgspec.
"""
