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

enum { MOST = 4 };

typedef struct {
    int count;
    /* What frees comes first and goes last: no block is sampled whose end would not be seen. */
    const char *names[MOST];
    void *ours[MOST];
    sonde_linkage_slot slots[MOST];
} watched_calls;

static watched_calls c_library = {
    4,
    {"free", "realloc", "calloc", "malloc"},
    {(void *)sonde_library_free, (void *)sonde_library_realloc, (void *)sonde_library_calloc,
     (void *)sonde_library_malloc},
    {{0}},
};
/* c10::free_cpu(void *) and c10::alloc_cpu(size_t): whichever allocator PyTorch was built with, the memory
 * of its tensors on the CPU comes from there. */
static watched_calls torch_tensors = {
    2,
    {"_ZN3c108free_cpuEPv", "_ZN3c109alloc_cpuEm"},
    {(void *)sonde_torch_free, (void *)sonde_torch_alloc},
    {{0}},
};

static void give_back(watched_calls *calls)
{
    for (int at = calls->count; at-- > 0;)
        sonde_linkage_slot_give_back(&calls->slots[at], calls->ours[at]);
}

static int take(watched_calls *calls)
{
    int status = 0;
    for (int at = 0; at < calls->count && status == 0; at++)
        status = sonde_linkage_slot_take(&calls->slots[at], calls->ours[at]) < 0 ? -ENOENT : 0;
    if (status < 0)
        give_back(calls);
    return status;
}

void sonde_library_give_back(void)
{
    give_back(&torch_tensors);
    give_back(&c_library);
}

/* Does it ask the C library for no memory, but Python (NumPy does, from 2.5 on)? We are there already. */
static int asks_python(void *library)
{
    static const char *const name = "PyMem_RawMalloc";
    sonde_linkage_slot slot = {0};
    for (int at = 1; at < c_library.count; at++)
        if (c_library.slots[at].at != NULL)
            return 0;
    sonde_linkage_imports_find(&slot, library, RTLD_DEFAULT, &name, 1);
    return slot.at != NULL;
}

int sonde_library_take(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return -ENOENT;
    if (c_library.slots[0].at == NULL)
        sonde_linkage_imports_find(c_library.slots, library, RTLD_DEFAULT, c_library.names, c_library.count);
    int is_seen = asks_python(library);
    dlclose(library); /* Python never unloads it */
    return is_seen ? 0 : take(&c_library);
}

int sonde_torch_tensors_take(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return -ENOENT;
    for (int at = 0; at < torch_tensors.count; at++)
        if (torch_tensors.slots[at].at == NULL)
            sonde_linkage_slot_find(&torch_tensors.slots[at], library, torch_tensors.names[at]);
    dlclose(library);
    for (int at = 0; at < torch_tensors.count; at++)
        if (torch_tensors.slots[at].at == NULL)
            return -ENOENT;
    sonde_torch_calls(torch_tensors.slots[1].original, torch_tensors.slots[0].original);
    return take(&torch_tensors);
}
