/* Our hooks in Python's allocators: PyMem_SetAllocator().
 *
 * A block is never changed: no header, no other address. So it does not matter whether a block was
 * allocated before we came, or is freed after we have gone.
 *
 * pymalloc serves blocks of up to 512 bytes itself, and passes all others on to the domain `raw`. A
 * small block that is drawn is asked for as if it were a larger one; then it comes from `raw`, too,
 * and is freed there. So only the few frees in `raw` have to be looked at, and the many of pymalloc
 * cost nothing. Where the domains `mem` and `obj` are not pymalloc (PYTHONMALLOC=malloc), they are
 * hooked as `raw` is.
 *
 * Threads without the GIL may be in `raw` while we put our hooks there. Whatever mixture of old and
 * new words they read is right, because ours have the same `ctx` as those before, and do not use it.
 */
#include "heap/allocators.h"
#include "heap/samples.h"

#include <errno.h>

#if SONDE_HAS_FRAMES && !defined(Py_GIL_DISABLED)

enum { SMALL = 512, MEM = 0, OBJ, RAW, DOMAINS };

static const PyMemAllocatorDomain domains[DOMAINS] = {PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ, PYMEM_DOMAIN_RAW};
static PyMemAllocatorEx before[DOMAINS];
static int is_whole[DOMAINS]; /* all sizes are counted here; none is passed on to `raw` */
/* The size of a small block that is being asked for as a larger one; or PROBE, which whoever sees it
 * resets. */
static __thread size_t drawn;
#define PROBE SIZE_MAX

static PyThreadState *find_state(int domain)
{
#if PY_VERSION_HEX >= 0x030d0000
    PyThreadState *state = PyThreadState_GetUnchecked();
    (void)domain;
    return state != NULL ? state : PyGILState_GetThisThreadState();
#elif PY_VERSION_HEX >= 0x030c0000
    PyThreadState *state = _PyThreadState_UncheckedGet();
    (void)domain;
    return state != NULL ? state : PyGILState_GetThisThreadState();
#else
    /* Before 3.12 this is the state of whoever has the GIL: in `raw` that may be another thread. */
    return domain == RAW ? PyGILState_GetThisThreadState() : _PyThreadState_UncheckedGet();
#endif
}

static inline int is_sampled(const void *address)
{
    return sonde_load_relaxed(&sonde_heap_now.filter)[sonde_filter_place((uintptr_t)address)] != 0;
}

/* Relaxed, here and below: these only count. Where interpreters have a GIL each, some bytes of small
 * blocks may be missed, as two of them count at once. */
static inline int is_small_drawn(size_t size)
{
    int64_t left = sonde_load_relaxed(&sonde_heap_now.small_left) - (int64_t)size;
    sonde_store_relaxed(&sonde_heap_now.small_left, left);
    return __builtin_expect(left <= 0, 0);
}

static inline int is_large_drawn(size_t size)
{
    int64_t left = sonde_add_relaxed(&sonde_heap_now.large_left, -(int64_t)size) - (int64_t)size;
    if (__builtin_expect(left > 0, 1))
        return 0;
    sonde_store_relaxed(&sonde_heap_now.large_left, sonde_heap_draw());
    return 1;
}

/* ---- `raw`, and whatever is not pymalloc ---------------------------------------------------- */

/* Is this block to be sampled? `*size` becomes the size that was really asked for. */
static inline int is_drawn(size_t *size)
{
    size_t known = drawn;
    if (__builtin_expect(known == 0, 1))
        return is_large_drawn(*size);
    drawn = 0;
    *size = known;
    return known != PROBE;
}

static inline void *large_malloc(int domain, size_t size)
{
    const PyMemAllocatorEx *to = &before[domain];
    size_t asked = size;
    if (!is_drawn(&asked))
        return to->malloc(to->ctx, size);
    void *block = to->malloc(to->ctx, size);
    if (block != NULL)
        sonde_heap_add(block, asked ? asked : 1, find_state(domain));
    return block;
}

static inline void *large_calloc(int domain, size_t n, size_t each)
{
    const PyMemAllocatorEx *to = &before[domain];
    size_t asked;
    if (__builtin_mul_overflow(n, each, &asked) || !is_drawn(&asked))
        return to->calloc(to->ctx, n, each);
    void *block = to->calloc(to->ctx, n, each);
    if (block != NULL)
        sonde_heap_add(block, asked ? asked : 1, find_state(domain));
    return block;
}

static inline void *large_realloc(int domain, void *old, size_t size)
{
    const PyMemAllocatorEx *to = &before[domain];
    sonde_block was;
    size_t asked = size;
    int is_new = is_drawn(&asked), is_known = old != NULL && is_sampled(old) && sonde_heap_take(old, &was);
    void *block = to->realloc(to->ctx, old, size);
    if (is_known && block == NULL)
        sonde_heap_put_back(&was);
    else if (is_known)
        sonde_heap_freed(&was);
    if (is_new && block != NULL)
        sonde_heap_add(block, asked ? asked : 1, find_state(domain));
    return block;
}

static inline void large_free(int domain, void *block)
{
    const PyMemAllocatorEx *to = &before[domain];
    sonde_block was;
    /* Before it is freed: afterwards its address may be somebody else's. */
    if (is_sampled(block) && sonde_heap_take(block, &was))
        sonde_heap_freed(&was);
    to->free(to->ctx, block);
}

/* ---- pymalloc --------------------------------------------------------------------------------- */

/* Begin to ask for a small block as if it were a larger one. */
static void begin_draw(size_t size)
{
    sonde_store_relaxed(&sonde_heap_now.small_left, sonde_heap_draw());
    drawn = size ? size : 1;
}

static __attribute__((noinline)) void *draw_malloc(int domain, size_t size)
{
    begin_draw(size);
    void *block = before[domain].malloc(before[domain].ctx, SMALL + 1);
    drawn = 0;
    return block;
}

static __attribute__((noinline)) void *draw_calloc(int domain, size_t size)
{
    begin_draw(size);
    void *block = before[domain].calloc(before[domain].ctx, 1, SMALL + 1);
    drawn = 0;
    return block;
}

static __attribute__((noinline)) void *draw_realloc(int domain, void *old, size_t size)
{
    begin_draw(size);
    void *block = before[domain].realloc(before[domain].ctx, old, SMALL + 1);
    drawn = 0;
    return block;
}

static inline void *small_malloc(int domain, size_t size)
{
    const PyMemAllocatorEx *to = &before[domain];
    if (size <= SMALL && is_small_drawn(size))
        return draw_malloc(domain, size);
    return to->malloc(to->ctx, size);
}

static inline void *small_calloc(int domain, size_t n, size_t each)
{
    const PyMemAllocatorEx *to = &before[domain];
    size_t size;
    if (!__builtin_mul_overflow(n, each, &size) && size <= SMALL && is_small_drawn(size))
        return draw_calloc(domain, size);
    return to->calloc(to->ctx, n, each);
}

static inline void *small_realloc(int domain, void *old, size_t size)
{
    const PyMemAllocatorEx *to = &before[domain];
    if (size <= SMALL && is_small_drawn(size))
        return draw_realloc(domain, old, size);
    return to->realloc(to->ctx, old, size);
}

/* ---- the hooks themselves ---------------------------------------------------------------------- */

#define HOOKS(name, size_class, domain)                                                       \
    static void *name##_malloc(void *ctx, size_t size)                                        \
    {                                                                                         \
        (void)ctx;                                                                            \
        return size_class##_malloc(domain, size);                                             \
    }                                                                                         \
    static void *name##_calloc(void *ctx, size_t n, size_t each)                              \
    {                                                                                         \
        (void)ctx;                                                                            \
        return size_class##_calloc(domain, n, each);                                          \
    }                                                                                         \
    static void *name##_realloc(void *ctx, void *block, size_t size)                          \
    {                                                                                         \
        (void)ctx;                                                                            \
        return size_class##_realloc(domain, block, size);                                     \
    }

#define FREE_HOOK(name, domain)                                                               \
    static void name##_free(void *ctx, void *block)                                           \
    {                                                                                         \
        (void)ctx;                                                                            \
        large_free(domain, block);                                                            \
    }

HOOKS(mem, small, MEM)
HOOKS(obj, small, OBJ)
HOOKS(raw, large, RAW)
HOOKS(whole_mem, large, MEM)
HOOKS(whole_obj, large, OBJ)
FREE_HOOK(raw, RAW)
FREE_HOOK(whole_mem, MEM)
FREE_HOOK(whole_obj, OBJ)

#define WHOLE(name) {NULL, name##_malloc, name##_calloc, name##_realloc, name##_free}
#define SMALL_ONLY(name) {NULL, name##_malloc, name##_calloc, name##_realloc, NULL}

static const PyMemAllocatorEx hooks[DOMAINS][2] = {
    {SMALL_ONLY(mem), WHOLE(whole_mem)}, {SMALL_ONLY(obj), WHOLE(whole_obj)}, {WHOLE(raw), WHOLE(raw)}};

/* ---- putting them there ------------------------------------------------------------------------- */

static void probe(int domain, size_t size)
{
    if (domain == MEM)
        PyMem_Free(PyMem_Malloc(size));
    else if (domain == OBJ)
        PyObject_Free(PyObject_Malloc(size));
    else
        PyMem_RawFree(PyMem_RawMalloc(size));
}

/* Does a call in this domain come to a hook that counts all sizes: its own, or that of `raw`? */
static int comes_to_whole(int domain, size_t size)
{
    drawn = PROBE;
    probe(domain, size);
    int is_seen = drawn == 0;
    drawn = 0;
    return is_seen;
}

/* Is our hook somewhere among those of this domain? */
static int is_there(int domain)
{
    if (before[domain].malloc == NULL)
        return 0;
    if (domain == RAW || is_whole[domain])
        return comes_to_whole(domain, 1);
    int64_t left = sonde_load_relaxed(&sonde_heap_now.small_left);
    probe(domain, 8);
    return sonde_load_relaxed(&sonde_heap_now.small_left) != left;
}

static void put(int domain)
{
    PyMemAllocatorEx ours;
    PyMem_GetAllocator(domains[domain], &before[domain]);
    /* `raw` is hooked by now: a large block of pymalloc comes to it. */
    is_whole[domain] = domain != RAW && !comes_to_whole(domain, 2 * SMALL);
    ours = hooks[domain][is_whole[domain]];
    ours.ctx = before[domain].ctx;
    if (ours.free == NULL)
        ours.free = before[domain].free;
    PyMem_SetAllocator(domains[domain], &ours);
}

int sonde_allocators_take(void)
{
    static const int order[DOMAINS] = {RAW, MEM, OBJ};
    for (int i = 0; i < DOMAINS; i++)
        if (!is_there(order[i]))
            put(order[i]);
    return sonde_allocators_taken() ? 0 : -EBUSY;
}

int sonde_allocators_taken(void) { return is_there(RAW) && is_there(MEM) && is_there(OBJ); }

void sonde_allocators_give_back(void)
{
    for (int domain = 0; domain < DOMAINS; domain++) {
        PyMemAllocatorEx now;
        PyMem_GetAllocator(domains[domain], &now);
        if (now.malloc == hooks[domain][is_whole[domain]].malloc)
            PyMem_SetAllocator(domains[domain], &before[domain]);
    }
}

#else

int sonde_allocators_take(void) { return -ENOSYS; }
int sonde_allocators_taken(void) { return 0; }
void sonde_allocators_give_back(void) {}

#endif
