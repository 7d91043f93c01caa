/* The source `heap`: allocations of Python's allocators, sampled by bytes. */
#ifndef SONDE_HEAP_BINDING_H
#define SONDE_HEAP_BINDING_H

#include "binding/binding.h"

extern PyTypeObject sonde_HeapType;

/* Were libraries loaded whose memory is to be seen? Asked in the turns of the native thread. */
int sonde_heap_wants_look(void);

/* See to them: in the main thread, with the GIL. */
void sonde_heap_look(void);

#endif
