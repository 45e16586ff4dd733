"""Recall: how a model gets recorded content back.

`memory.Memory` is `ms` as the host sees it; `ms_prelude.py` is its half inside the kernel, and
`memory_tools.py` offers the same to models without a kernel. Everything here runs on behalf of code
that may be hostile: each call is checked against the grant and has limits of its own.

    memory          the border: names of methods, sizes of arguments, notes of a cell
    lookup          search, expand, sql_query: rows that were asked for
    mentions        grep, timeline: every mention
    overview        outline, turns, gist: a stretch of history in short
    standing        standing instructions and preferences
    reader          store, scope, grant and visible events, which all of these read through, and
                    the one shape of rows
    arguments       what is accepted as an argument

Nothing outside the grant is ever read. Within it, calls hide:

    echoes, notices, bookkeeping    every call but expand and sql_query, which return what is asked
                                    for (`Event.is_searchable` decides, and grep says it in SQL)
    the running task                every call but expand, sql_query, index and provenance
                                    (`Reader.running_seqs`); search hides all that the view shows
    replies that only make calls    search (`only_makes_calls`): their calls have events
    erased events                   every call but expand and sql_query, which return "[erased]"
"""
