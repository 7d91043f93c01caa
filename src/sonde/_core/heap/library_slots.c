/* The allocations of a library: see library_slots.h.
 *
 * Only a library that allocates and frees by itself can be watched so: a block that is freed elsewhere
 * looks alive until its address is used again.
 */
#define _GNU_SOURCE 1
#include "heap/library_slots.h"
#include "heap/allocators.h"
#include "kernel/linkage_slot.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

enum { SLOTS = 4 };
/* What frees comes first and goes last: no block is sampled whose end would not be seen. */
static const char *const names[SLOTS] = {"free", "realloc", "calloc", "malloc"};
static void *const ours[SLOTS] = {(void *)sonde_library_free, (void *)sonde_library_realloc,
                                  (void *)sonde_library_calloc, (void *)sonde_library_malloc};
static sonde_linkage_slot slots[SLOTS];

void sonde_library_give_back(void)
{
    for (int at = SLOTS; at-- > 0;)
        sonde_linkage_slot_give_back(&slots[at], ours[at]);
}

int sonde_library_take(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return -ENOENT;
    if (slots[0].at == NULL)
        sonde_linkage_imports_find(slots, library, RTLD_DEFAULT, names, SLOTS);
    dlclose(library); /* Python never unloads it */
    int status = 0;
    for (int at = 0; at < SLOTS && status == 0; at++)
        status = sonde_linkage_slot_take(&slots[at], ours[at]) < 0 ? -ENOENT : 0;
    if (status < 0)
        sonde_library_give_back();
    return status;
}
