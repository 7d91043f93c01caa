/* Where the program or a library lies in memory. */
#ifndef SONDE_CODE_RANGE_H
#define SONDE_CODE_RANGE_H

#include <stdint.h>

typedef struct {
    uintptr_t begin, end;
} sonde_range;

/* Find the loaded object that contains this address. Waits for threads that load a library.
 * Returns 0 or -ENOENT. */
int sonde_find_object(const void *inside, sonde_range *object);

#endif
