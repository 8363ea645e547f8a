"""pyalloc-top: the memory of every process that runs on pyalloc, from their stats pages, live or once.

Data flows one way: pages (pyalloc.stats_page) -> reading.Reader -> model.Process -> view.py (text) or model.records
(JSON). cli.py has the command line, live.py the loop, keys.py the keyboard. Neither torch nor the allocator's library
is loaded.
"""
