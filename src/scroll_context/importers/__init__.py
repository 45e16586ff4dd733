"""Message files of other systems, read as drafts. Pure parsing: imports events and errors only, writes nothing."""
