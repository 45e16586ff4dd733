"""The inspector: a read-only site over a store, served to one person's browser (`scroll serve`).

Everything that a store holds is foreign text. It reaches a page only through templates that escape
it and make hidden characters visible, and pages may load nothing but their own scripts and styles.
No request changes the store.
"""
