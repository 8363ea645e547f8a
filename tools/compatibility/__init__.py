"""The table of what torch's memory functions do under pyalloc, made by running a small program for each."""
