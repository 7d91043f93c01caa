/* The allocations of libraries: see library_slots.h.
 *
 * All libraries are watched together, because one frees what another has allocated. While we stand in the
 * slots of a library it cannot be unloaded: we hold it. What is freed through a copy of the address of `free`
 * that a program has made at run time looks alive until its address is used again.
 */
#define _GNU_SOURCE 1 /* dl_iterate_phdr, dladdr */
#include "heap/library_slots.h"
#include "heap/library_calls.h"
#include "heap/samples.h"
#include "kernel/linkage_slot.h"
#include "kernel/sealed_word.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if SONDE_HAS_FRAMES && !defined(Py_GIL_DISABLED)

enum { CALLS = 8, TORCH_CALLS = 2 };

/* What frees comes first and goes last: no block is sampled whose end would not be seen. */
static const char *const names[CALLS] = {"free",          "realloc",  "reallocarray",   "calloc",
                                         "aligned_alloc", "memalign", "posix_memalign", "malloc"};
static void *const ours[CALLS] = {
    (void *)sonde_library_free,          (void *)sonde_library_realloc,  (void *)sonde_library_reallocarray,
    (void *)sonde_library_calloc,        (void *)sonde_library_aligned_alloc, (void *)sonde_library_memalign,
    (void *)sonde_library_posix_memalign, (void *)sonde_library_malloc};

/* c10::free_cpu(void *) and c10::alloc_cpu(size_t): whichever allocator PyTorch was built with, the memory
 * of its tensors on the CPU comes from there. */
static const char *const torch_names[TORCH_CALLS] = {"_ZN3c108free_cpuEPv", "_ZN3c109alloc_cpuEm"};
static void *const torch_ours[TORCH_CALLS] = {(void *)sonde_torch_free, (void *)sonde_torch_alloc};
static sonde_linkage_slot torch_slots[TORCH_CALLS];

typedef struct {
    uintptr_t base, end; /* where it was loaded */
    char *name;
    void *held; /* our reference to it; NULL: it has no slots of ours */
} loaded_library;

typedef struct {
    sonde_linkage_slot slot;
    int call; /* an index of `names` */
} taken_slot;

/* A list of anything that grows. */
typedef struct {
    size_t count, room;
    void *all;
} list;

static list libraries; /* of loaded_library: all that were looked at */
static list slots;     /* of taken_slot */
static uint64_t seen;  /* loadings and unloadings when we last looked */

static void *add_to(list *them, size_t bytes)
{
    if (them->count == them->room) {
        size_t room = them->room ? 2 * them->room : 64;
        void *more = realloc(them->all, room * bytes);
        if (more == NULL)
            return NULL;
        them->all = more;
        them->room = room;
    }
    return (char *)them->all + bytes * them->count++;
}

static void empty(list *them)
{
    free(them->all);
    *them = (list){0};
}

/* ---- which libraries ------------------------------------------------------------------------------ */

static uint64_t changes_of(const struct dl_phdr_info *info, size_t size)
{
    return size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs
               ? (uint64_t)info->dlpi_adds + (uint64_t)info->dlpi_subs
               : 0;
}

static int read_changes(struct dl_phdr_info *info, size_t size, void *changes)
{
    *(uint64_t *)changes = changes_of(info, size);
    return 1; /* all entries tell the same */
}

int sonde_libraries_changed(void)
{
    uint64_t changes = 0;
    (void)dl_iterate_phdr(read_changes, &changes);
    return changes != seen;
}

static loaded_library describe(const struct dl_phdr_info *info)
{
    loaded_library found = {.base = UINTPTR_MAX};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr, end = begin + part->p_memsz;
        if (part->p_type == PT_LOAD && begin < found.base)
            found.base = begin;
        if (part->p_type == PT_LOAD && end > found.end)
            found.end = end;
    }
    return found;
}

static int is_in(const loaded_library *library, const void *address)
{
    return library->base <= (uintptr_t)address && (uintptr_t)address < library->end;
}

static int is_known(const loaded_library *library, const char *name)
{
    const loaded_library *all = libraries.all;
    for (size_t i = 0; i < libraries.count; i++)
        if (all[i].base == library->base && strcmp(all[i].name, name) == 0)
            return 1;
    return 0;
}

/* Python's own allocators are hooked; the C library and its loader, and whatever stands in their place,
 * are what we pass calls on to; libc10 has functions of its own. */
static int is_left_out(const loaded_library *library)
{
    const void *homes[] = {(const void *)PyMem_RawMalloc, (const void *)sonde_libraries_take,
                           dlsym(RTLD_DEFAULT, "malloc"), dlsym(RTLD_DEFAULT, "fork")};
    const char *file = strrchr(library->name, '/');
    file = file == NULL ? library->name : file + 1;
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++)
        if (is_in(library, homes[i]))
            return 1;
    return strncmp(file, "ld-", 3) == 0 || strncmp(file, "libc10.", 7) == 0;
}

/* The loader is locked here: only note what there is. */
static int note_library(struct dl_phdr_info *info, size_t size, void *Py_UNUSED(context))
{
    loaded_library found = describe(info);
    seen = changes_of(info, size);
    if (info->dlpi_name == NULL || is_known(&found, info->dlpi_name))
        return 0;
    found.name = strdup(info->dlpi_name);
    loaded_library *one = found.name == NULL ? NULL : add_to(&libraries, sizeof *one);
    if (one == NULL) {
        free(found.name);
        return 1;
    }
    *one = found;
    return 0;
}

/* ---- their slots ---------------------------------------------------------------------------------- */

typedef struct {
    const sonde_mappings *mappings;
    void *originals[CALLS];
    const loaded_library *library;
    int status;
} slot_search;

static void add_slot(void *context, int call, void **at)
{
    slot_search *search = context;
    void *original = search->originals[call];
    int look = sonde_mappings_look(search->mappings, at);
    if (original == NULL || look < 0 || (*at != original && !is_in(search->library, *at)))
        return; /* somebody else has taken it */
    taken_slot *one = add_to(&slots, sizeof *one);
    if (one == NULL)
        search->status = -ENOMEM;
    else
        *one = (taken_slot){{at, original, *at, look}, call};
}

static void search_library(loaded_library *library, slot_search *search)
{
    size_t before = slots.count;
    if (is_left_out(library))
        return;
    library->held = dlopen(library->name[0] ? library->name : NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (library->held == NULL)
        return;
    search->library = library;
    sonde_linkage_visit_imports(library->held, names, CALLS, add_slot, search);
    if (slots.count == before) {
        dlclose(library->held);
        library->held = NULL;
    }
}

static int take_slots(size_t from)
{
    int taken = 0;
    taken_slot *all = slots.all;
    for (int call = 0; call < CALLS; call++)
        for (size_t i = from; i < slots.count; i++)
            if (all[i].call == call)
                taken += sonde_linkage_slot_take(&all[i].slot, ours[call]) == 0;
    return taken;
}

int sonde_libraries_take(void)
{
    size_t known = libraries.count, before = slots.count;
    sonde_mappings *mappings = sonde_mappings_read();
    slot_search search = {.mappings = mappings};
    if (mappings == NULL)
        return -EACCES;
    for (int call = 0; call < CALLS; call++)
        search.originals[call] = dlsym(RTLD_DEFAULT, names[call]);
    (void)dl_iterate_phdr(note_library, NULL);
    loaded_library *all = libraries.all;
    for (size_t i = known; i < libraries.count; i++)
        search_library(&all[i], &search);
    sonde_mappings_free(mappings);
    int taken = take_slots(before);
    return search.status < 0 ? search.status : taken;
}

int sonde_torch_tensors_take(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return -ENOENT;
    int status = 0;
    for (int at = 0; at < TORCH_CALLS; at++)
        if (torch_slots[at].at == NULL)
            sonde_linkage_slot_find(&torch_slots[at], library, torch_names[at]);
    dlclose(library); /* Python never unloads it */
    for (int at = 0; at < TORCH_CALLS; at++)
        if (torch_slots[at].at == NULL)
            return -ENOENT;
    sonde_torch_calls(torch_slots[1].original, torch_slots[0].original);
    for (int at = 0; at < TORCH_CALLS && status == 0; at++)
        status = sonde_linkage_slot_take(&torch_slots[at], torch_ours[at]) < 0 ? -ENOENT : 0;
    return status;
}

void sonde_libraries_give_back(void)
{
    for (int at = TORCH_CALLS; at-- > 0;)
        sonde_linkage_slot_give_back(&torch_slots[at], torch_ours[at]);
    taken_slot *taken = slots.all;
    for (int call = CALLS; call-- > 0;)
        for (size_t i = 0; i < slots.count; i++)
            if (taken[i].call == call)
                sonde_linkage_slot_give_back(&taken[i].slot, ours[call]);
    loaded_library *all = libraries.all;
    for (size_t i = 0; i < libraries.count; i++) {
        if (all[i].held != NULL)
            dlclose(all[i].held);
        free(all[i].name);
    }
    empty(&slots);
    empty(&libraries);
    seen = 0;
}

#endif
