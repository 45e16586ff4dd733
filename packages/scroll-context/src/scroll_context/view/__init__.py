"""The part of a session that the model sees, how it stays within the window, and how the model
finds everything that left it.

Pure: values in, values out. No disk, no clock, no model, nothing of the store or the kernel.
"""
