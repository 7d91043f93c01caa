/* The source `exception`: a hook in front of the one that handles uncaught exceptions. Needs the
 * GIL. */
#ifndef SONDE_CHAINED_HOOK_H
#define SONDE_CHAINED_HOOK_H

#include "binding/binding.h"

extern PyTypeObject sonde_ChainedHookType;

#endif
