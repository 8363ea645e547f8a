// PYALLOC_COLD: a function that hot ones call only now and then. Kept out of them, so that they stay short and save few
// registers.
#pragma once

#define PYALLOC_COLD __attribute__((noinline, cold))
