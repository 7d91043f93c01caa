/* The source `gc`: collections of Python's garbage collector. Needs the GIL. */
#ifndef SONDE_GC_CALLBACK_H
#define SONDE_GC_CALLBACK_H

#include "binding/binding.h"

extern PyTypeObject sonde_GcCallbackType;

#endif
