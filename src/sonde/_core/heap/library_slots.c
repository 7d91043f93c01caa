/* The allocations of libraries: see library_slots.h.
 *
 * All libraries are watched together, because one frees what another has allocated. What is freed through a copy of
 * the address of `free` that a program has made at run time looks alive until its address is used again.
 *
 * Slots are read and changed while the loader shows us their library: until then no library can be unloaded. We hold
 * none, load none, and wait for no constructor. But we wait for others to whom libraries are shown, and so without the
 * GIL: see loader.h. Meanwhile no other thread may use our lists, which the GIL guards otherwise.
 */
#define _GNU_SOURCE 1 /* dl_iterate_phdr, dladdr, RTLD_DEFAULT */
#include "heap/library_slots.h"
#include "heap/library_calls.h"
#include "heap/samples.h"
#include "kernel/fork.h"
#include "kernel/linkage_slot.h"
#include "kernel/loader.h"
#include "kernel/sealed_word.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if SONDE_HAS_FRAMES && !defined(Py_GIL_DISABLED)

#define FIRST_NS (int64_t)10000000  /* from a look to the next one, at first */
#define BLIND_NS (int64_t)100000000 /* the same if the loader does not tell that it has more */
#define MOST_NS (int64_t)1000000000 /* to wait for another thread that looks */
enum { CALLS = 8, TORCH_CALLS = 2, PATIENCE = 8, NAP_NS = 100000 };

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
    int is_here; /* the loader still shows it */
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

static list libraries; /* of loaded_library: those that need no further look */
static list slots;     /* of taken_slot */
static char *only;     /* the file name of the one that is watched; NULL: all are */
static int waits;      /* looks since the last loading that found a library which was not loaded to its end */
static uint64_t waits_for; /* loadings and unloadings when these began */
static int64_t again_ns;   /* when to look again after such a look; read by any thread */
static int is_settled;     /* the last look was none of those; read by any thread */
SONDE_CHANGED_IN_CHILD static int is_busy; /* a thread uses all these without the GIL; changed under the GIL */

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

int sonde_libraries_changed(void)
{
    if (sonde_load_relaxed(&is_busy))
        return 0; /* somebody looks just now */
    int has_more = sonde_load_relaxed(&is_settled) ? sonde_loader_has_more() : -ENOSYS;
    return has_more < 0 ? sonde_clock_ns() >= sonde_load_relaxed(&again_ns) : has_more;
}

typedef struct {
    loaded_library library;
    const void *dynamic;
    uintptr_t address, sealed_begin, sealed_end; /* whole pages that the loader makes read-only at last */
} description;

static description describe(const struct dl_phdr_info *info)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    description found = {.library = {.base = UINTPTR_MAX, .name = (char *)info->dlpi_name}, .address = info->dlpi_addr};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr, end = begin + part->p_memsz;
        if (part->p_type == PT_LOAD && begin < found.library.base)
            found.library.base = begin;
        if (part->p_type == PT_LOAD && end > found.library.end)
            found.library.end = end;
        if (part->p_type == PT_DYNAMIC)
            found.dynamic = (const void *)begin;
        if (part->p_type == PT_GNU_RELRO) {
            found.sealed_begin = begin & ~(page - 1);
            found.sealed_end = end & ~(page - 1);
        }
    }
    return found;
}

static int is_in(const loaded_library *library, const void *address)
{
    return library->base <= (uintptr_t)address && (uintptr_t)address < library->end;
}

static loaded_library *find_known(const loaded_library *library)
{
    loaded_library *all = libraries.all;
    for (size_t i = 0; i < libraries.count; i++)
        if (all[i].base == library->base && strcmp(all[i].name, library->name) == 0)
            return &all[i];
    return NULL;
}

static const char *find_file(const char *name)
{
    const char *file = strrchr(name, '/');
    return file == NULL ? name : file + 1;
}

/* Python's own allocators are hooked; the C library and its loader, and whatever stands in their place, are what
 * we pass calls on to; libc10 has functions of its own. */
static int is_left_out(const loaded_library *library, void *const *homes, int count)
{
    const char *file = find_file(library->name);
    for (int i = 0; i < count; i++)
        if (is_in(library, homes[i]))
            return 1;
    if (only != NULL && strcmp(file, only) != 0)
        return 1;
    return strncmp(file, "ld-", 3) == 0 || strncmp(file, "libc10.", 7) == 0;
}

/* ---- their slots ---------------------------------------------------------------------------------- */

enum { HOMES = 4, WAYS = 2, FINE = 0, NOT_YET, FOREIGN };

typedef struct {
    sonde_mappings *mappings;       /* read when the first new library is seen */
    void *originals[WAYS][CALLS];   /* a function may have two addresses: its own, and one in the program */
    void *homes[HOMES];             /* of what is left out */
    const description *about;       /* the library at hand */
    int state;                      /* what its slots look like so far */
    int is_begun;
    int is_last;                    /* nobody waits for the loader any more */
    int waits;                      /* the loader is not done with one */
    int taken, status;
} library_look;

static int leads_to(const library_look *look, int call, const void *found)
{
    for (int way = 0; way < WAYS; way++)
        if (found == look->originals[way][call])
            return 1;
    return 0;
}

static void add_slot(library_look *look, int call, void **at, int how)
{
    taken_slot *one = add_to(&slots, sizeof *one);
    if (one == NULL)
        look->status = -ENOMEM;
    else
        *one = (taken_slot){{at, *at, *at, how}, call};
}

static void judge_slot(void *context, int call, void **at, int kind)
{
    library_look *look = context;
    void *found = sonde_load_relaxed(at);
    int how = sonde_mappings_look(look->mappings, at);
    int is_sealed_at_last = look->about->sealed_begin <= (uintptr_t)at && (uintptr_t)at < look->about->sealed_end;
    /* Until the loader comes to it, a slot of a library that is not to be sealed holds an address of its file. */
    int is_unfilled = kind == SONDE_LINKAGE_SLOT && found != NULL && sonde_mappings_look(look->mappings, found) == -EFAULT;
    if (((is_sealed_at_last && how == SONDE_WORD_WRITABLE) || is_unfilled) && !look->is_last)
        look->state = look->state == FOREIGN ? FOREIGN : NOT_YET; /* the loader is not done with it */
    else if (leads_to(look, call, found) && how >= 0)
        add_slot(look, call, at, how);
    else if (kind == SONDE_LINKAGE_SLOT && found != NULL) /* another allocator, or not known before its first call */
        look->state = FOREIGN;
}

/* Take what frees first: no block is to be sampled whose end would not be seen. */
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

static int take_library(const description *about, library_look *look)
{
    size_t before = slots.count;
    look->about = about;
    look->state = FINE;
    if (look->mappings == NULL)
        look->mappings = sonde_mappings_read();
    if (look->mappings == NULL)
        return look->status = -EACCES;
    sonde_linkage_visit_imports(about->address, about->dynamic, names, CALLS, judge_slot, look);
    if (look->state != FINE)
        slots.count = before;
    look->taken += take_slots(before);
    return look->state;
}

/* A library is loaded within moments. But its pages may stay writable for good: a tool that changes slots may leave them
 * so. As each look takes milliseconds in a large program, the pause between them doubles. */
static void begin_look(library_look *look, uint64_t changes)
{
    sonde_loader_note();
    if (waits_for != changes)
        waits = 0;
    waits_for = changes;
    look->is_last = waits == PATIENCE;
    look->is_begun = 1;
}

static int look_at_library(struct dl_phdr_info *info, size_t size, void *context)
{
    library_look *look = context;
    description about = describe(info);
    if (!look->is_begun)
        begin_look(look, changes_of(info, size));
    loaded_library *known = info->dlpi_name == NULL ? NULL : find_known(&about.library);
    if (known != NULL)
        known->is_here = 1;
    if (known != NULL || info->dlpi_name == NULL || about.dynamic == NULL || look->status < 0)
        return 0;
    if (!is_left_out(&about.library, look->homes, HOMES) && take_library(&about, look) == NOT_YET) {
        look->waits = 1;
        return 0;
    }
    loaded_library *one = look->status < 0 ? NULL : add_to(&libraries, sizeof *one);
    char *name = one == NULL ? NULL : strdup(info->dlpi_name);
    if (name == NULL) {
        libraries.count -= one != NULL;
        look->status = look->status < 0 ? look->status : -ENOMEM;
        return 0;
    }
    *one = (loaded_library){about.library.base, about.library.end, name, 1};
    return 0;
}

/* Forget what was unloaded, and with it its slots. */
static void forget_unloaded(void)
{
    loaded_library *all = libraries.all;
    taken_slot *taken = slots.all;
    size_t kept = 0;
    for (size_t i = 0; i < libraries.count; i++) {
        size_t left = 0;
        for (size_t at = 0; !all[i].is_here && at < slots.count; at++)
            if (!is_in(&all[i], taken[at].slot.at))
                taken[left++] = taken[at];
        if (all[i].is_here) {
            all[kept] = all[i];
            all[kept++].is_here = 0;
        } else {
            slots.count = left;
            free(all[i].name);
        }
    }
    libraries.count = kept;
}

/* Where our own calls of these functions go. */
static void note_own(void *context, int call, void **at, int kind)
{
    library_look *look = context;
    if (kind == SONDE_LINKAGE_SLOT && look->originals[1][call] == NULL) /* calls come first, then addresses */
        look->originals[1][call] = *at;
}

static int find_own(struct dl_phdr_info *info, size_t Py_UNUSED(size), void *context)
{
    description about = describe(info);
    if (!is_in(&about.library, (const void *)sonde_libraries_take))
        return 0;
    sonde_linkage_visit_imports(about.address, about.dynamic, names, CALLS, note_own, context);
    for (int call = 0; call < CALLS; call++)
        if (is_in(&about.library, ((library_look *)context)->originals[1][call]))
            ((library_look *)context)->originals[1][call] = NULL; /* it has not been called yet */
    return 1;
}

/* The functions are looked up while our own library is loaded. Later, dlsym() would wait for whoever loads another
 * one, perhaps for its constructor, which perhaps waits for the GIL. */
static library_look known_calls;

__attribute__((constructor)) static void find_calls(void)
{
    known_calls = (library_look){
        .homes = {(void *)PyMem_RawMalloc, (void *)sonde_libraries_take, dlsym(RTLD_NEXT, "fork")}};
    for (int call = 0; call < CALLS; call++)
        known_calls.originals[0][call] = dlsym(RTLD_DEFAULT, names[call]);
    (void)dl_iterate_phdr(find_own, &known_calls);
    void *const own = known_calls.originals[1][CALLS - 1];
    known_calls.homes[HOMES - 1] = own;
    /* Where a program has addresses of its own for some of them, ours may be those: ask who has malloc(). */
    Dl_info info;
    void *library = own != NULL && dladdr(own, &info) != 0 ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    for (int call = 0; library != NULL && call < CALLS; call++)
        known_calls.originals[1][call] = dlsym(library, names[call]);
    if (library != NULL)
        dlclose(library);
}

/* Watch this library alone, or all: then those that were left out are new again. */
static void choose(const char *one)
{
    loaded_library *all = libraries.all;
    const taken_slot *taken = slots.all;
    free(only);
    only = one == NULL ? NULL : strdup(find_file(one));
    for (size_t i = 0; i < libraries.count; i++)
        for (size_t at = 0; at < slots.count && !all[i].is_here; at++)
            all[i].is_here = is_in(&all[i], taken[at].slot.at);
    forget_unloaded();
}

/* Have the loader show its libraries without the GIL. Call this with it, when no other thread does so. */
static int show_all(sonde_loader_look *look, void *context)
{
    int status;
    sonde_store_relaxed(&is_busy, 1);
    Py_BEGIN_ALLOW_THREADS
    status = sonde_loader_show(look, context);
    Py_END_ALLOW_THREADS
    sonde_store_relaxed(&is_busy, 0);
    return status;
}

/* Returns whether no other thread does so; else waits for it for a while. */
static int is_free(void)
{
    int64_t end_ns = sonde_clock_ns() + MOST_NS;
    while (is_busy && sonde_clock_ns() < end_ns) {
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
        Py_END_ALLOW_THREADS
    }
    return !is_busy;
}

static void forget_in_child(void) { SONDE_RESET(is_busy, 0); }

SONDE_IN_CHILD(forget_in_child)

int sonde_libraries_take(const char *one)
{
    library_look look = known_calls;
    if (!is_free())
        return -EBUSY;
    if (libraries.count == 0 || (one == NULL && only != NULL))
        choose(one);
    int status = show_all(look_at_library, &look);
    if (status == 0)
        forget_unloaded();
    int is_due = status < 0 || look.waits;
    sonde_store_relaxed(&again_ns, sonde_clock_ns() + (look.waits ? FIRST_NS << waits++ : status < 0 ? 0 : BLIND_NS));
    sonde_store_relaxed(&is_settled, !is_due);
    sonde_mappings_free(look.mappings);
    return status < 0 ? status : look.status < 0 ? look.status : look.taken;
}

static int find_lost(struct dl_phdr_info *info, size_t Py_UNUSED(size), void *lost)
{
    description about = describe(info);
    const taken_slot *taken = slots.all;
    if (info->dlpi_name == NULL || find_known(&about.library) == NULL)
        return 0;
    for (size_t i = 0; i < slots.count; i++)
        *(int *)lost |= is_in(&about.library, taken[i].slot.at) &&
                        sonde_load_relaxed(taken[i].slot.at) != ours[taken[i].call];
    return *(int *)lost;
}

int sonde_libraries_lost(void)
{
    int lost = 0;
    if (!is_busy && slots.count > 0)
        (void)show_all(find_lost, &lost);
    return lost;
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

/* A page may have been sealed since its slot was taken, by the loader or by whoever had left it open. */
static void give_back_slot(sonde_linkage_slot *slot, int call, const sonde_mappings *mappings)
{
    int look = mappings == NULL ? slot->look : sonde_mappings_look(mappings, slot->at);
    if (look < 0)
        return;
    slot->look = look;
    sonde_linkage_slot_give_back(slot, ours[call]);
}

static int give_back_library(struct dl_phdr_info *info, size_t Py_UNUSED(size), void *context)
{
    sonde_mappings **mappings = context; /* read when the first library is seen: by now nobody loads one */
    description about = describe(info);
    taken_slot *taken = slots.all;
    if (info->dlpi_name == NULL || find_known(&about.library) == NULL)
        return 0;
    if (*mappings == NULL)
        *mappings = sonde_mappings_read();
    for (int call = CALLS; call-- > 0;)
        for (size_t i = 0; i < slots.count; i++)
            if (taken[i].call == call && is_in(&about.library, taken[i].slot.at))
                give_back_slot(&taken[i].slot, call, *mappings);
    return 0;
}

void sonde_libraries_give_back(void)
{
    for (int at = TORCH_CALLS; at-- > 0;)
        sonde_linkage_slot_give_back(&torch_slots[at], torch_ours[at]);
    if (!is_free())
        return; /* ours stay in their places, and pass calls on */
    sonde_mappings *mappings = NULL;
    int status = slots.count == 0 ? 0 : show_all(give_back_library, &mappings);
    sonde_mappings_free(mappings);
    loaded_library *all = libraries.all;
    for (size_t i = 0; status == 0 && i < libraries.count; i++)
        free(all[i].name);
    if (status == 0) {
        empty(&slots);
        empty(&libraries);
    }
    waits = 0;
    sonde_store_relaxed(&again_ns, 0);
    sonde_store_relaxed(&is_settled, 0);
}

#endif
