"""What the model sees of a session, how it stays within the window, and how everything that left is
found again.

Pure: values in, values out. No disk, no clock, no model, nothing of the store or the kernel.
"""
