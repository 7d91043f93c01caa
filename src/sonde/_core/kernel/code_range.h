/* Where the program or a library lies in memory. */
#ifndef SONDE_CODE_RANGE_H
#define SONDE_CODE_RANGE_H

#include <stdint.h>

typedef struct {
    uintptr_t begin, end;
} sonde_range;

/* Find the loaded object that contains this address; at once if it is one that was kept. Else it waits for threads that
 * load a library, or to which libraries are shown (see loader.h). Returns 0 or -ENOENT. */
int sonde_find_object(const void *inside, sonde_range *object);

/* Keep where an object lies that is never unloaded. While the core is being loaded, which waits for them anyway; that of
 * the core itself is kept. */
void sonde_keep_object(const void *inside);

#endif
