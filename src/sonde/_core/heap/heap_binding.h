/* The source `heap`: allocations of Python's allocators, sampled by bytes. */
#ifndef SONDE_HEAP_BINDING_H
#define SONDE_HEAP_BINDING_H

#include "binding/binding.h"

extern PyTypeObject sonde_HeapType;

#endif
