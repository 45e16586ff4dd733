"""Pure functions of text: sentences, standing instructions, distinctive terms, extracts, likeness.

No disk, no clock, no store and no model: the same text always gives the same answer, so what is
made here may stand in a recorded view. Every other layer may import this one; it imports none of
them.
"""
