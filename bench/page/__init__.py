"""The report over results files: one HTML page without anything from outside it, and Markdown tables.

``files`` reads; ``entries``, ``roofline`` and ``model`` turn rows into figures; ``families`` says which files
count; ``sections`` and ``overhead`` turn figures into ``tables``, ``plots`` into SVG; ``main`` puts the page
together.  Nothing here needs a GPU.
"""
