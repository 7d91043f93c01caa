/* The interpreters of this process, read by a thread that belongs to none of them. */
#ifndef SONDE_INTERPRETERS_H
#define SONDE_INTERPRETERS_H

#include "stacks/frames.h"

typedef struct {
    uintptr_t address, next; /* next 0: it is the last one */
    uintptr_t head;          /* the state of its newest thread; 0: it has none */
    uint32_t number;         /* the main one has 0 */
} sonde_interpreter;

/* Return the address of the newest one besides the main interpreter; 0: there is none. */
uintptr_t sonde_interpreters_newest(void);

/* Read one. Returns 0 or -errno: it is gone. */
int sonde_interpreters_read(uintptr_t address, sonde_interpreter *interpreter);

/* Is this the address of a part of the GIL of an interpreter: of its mutex, or of the condition that
 * threads wait for which want it? */
int sonde_interpreters_has_gil(uintptr_t interpreter, uintptr_t address);

#endif
