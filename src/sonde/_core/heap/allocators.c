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
#include "heap/pace.h"
#include "heap/samples.h"

#include <errno.h>

#if SONDE_HAS_FRAMES && !defined(Py_GIL_DISABLED)

enum { SMALL = 512, OBJ = SONDE_OBJ, MEM = SONDE_MEM, RAW = SONDE_RAW, DOMAINS = SONDE_DOMAINS };

static const PyMemAllocatorDomain domains[DOMAINS] = {PYMEM_DOMAIN_OBJ, PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_RAW};
static PyMemAllocatorEx *const before = sonde_heap_now.before;
static int is_whole[DOMAINS]; /* all sizes are counted here; none is passed on to `raw` */
/* The size of a small block that is being asked for as a larger one; or PROBE, which whoever sees it
 * resets. */
static __thread size_t drawn;
#define PROBE SIZE_MAX
/* Apart from the hot path, which would have to make room for its variables. */
#define APART __attribute__((noinline, cold))
#define SELDOM(condition) __builtin_expect((condition), 0)

static PyThreadState *find_state(int domain)
{
#if PY_VERSION_HEX >= 0x030c0000
    (void)domain;
    return sonde_heap_thread();
#else
    /* Before 3.12 this is the state of whoever has the GIL: in `raw` that may be another thread. */
    return domain >= RAW ? sonde_heap_thread() : _PyThreadState_UncheckedGet();
#endif
}

/* Relaxed, here and below, and no atomic addition, which would take longer than all the rest: where two
 * threads count at once, bytes of one may be missed. Blocks that are served without the GIL, and small
 * ones of interpreters with a GIL each, may so be sampled a little less often than they should be. */
static inline int is_drawn_from(int64_t *counter, size_t size)
{
    int64_t left = sonde_load_relaxed(counter);
    sonde_store_relaxed(counter, left - (int64_t)size);
    return left <= (int64_t)size;
}

/* ---- whoever served a call before us -------------------------------------------------------- */

/* `domain` is a constant wherever this is hot; `ctx` is what we were called with. */
static inline void *pass_malloc(int domain, void *ctx, size_t size) { return before[domain].malloc(ctx, size); }

static inline void *pass_calloc(int domain, void *ctx, size_t n, size_t each)
{
    return before[domain].calloc(ctx, n, each);
}

static inline void *pass_realloc(int domain, void *ctx, void *old, size_t size)
{
    return before[domain].realloc(ctx, old, size);
}

static inline void pass_free(int domain, void *ctx, void *block) { before[domain].free(ctx, block); }

/* ---- `raw`, and whatever is not pymalloc ---------------------------------------------------- */

/* Is this block to be sampled? */
static inline int is_drawn(size_t size)
{
    return sonde_load_relaxed(&sonde_heap_now.draws) != 0 ||
           is_drawn_from(&sonde_heap_now.large_left, size);
}

/* Return the size that the program asked for if it really is to be sampled, else 0. */
static size_t confirm(size_t size)
{
    size_t known = drawn;
    drawn = 0;
    if (known == PROBE)
        return 0;
    if (known != 0)
        return known;
    /* Somebody else draws a small block: then this one has not been counted yet. */
    if (sonde_load_relaxed(&sonde_heap_now.large_left) > 0 && !is_drawn_from(&sonde_heap_now.large_left, size))
        return 0;
    sonde_store_relaxed(&sonde_heap_now.large_left, sonde_pace_draw());
    return size ? size : 1;
}

static APART void *confirm_malloc(void *ctx, size_t size, int domain)
{
    size_t asked = confirm(size);
    void *block = pass_malloc(domain, ctx, size);
    if (asked && block != NULL)
        sonde_heap_add(block, asked, find_state(domain));
    return block;
}

static APART void *confirm_calloc(void *ctx, size_t n, size_t each, int domain)
{
    size_t asked = confirm(n * each);
    void *block = pass_calloc(domain, ctx, n, each);
    if (asked && block != NULL)
        sonde_heap_add(block, asked, find_state(domain));
    return block;
}

static APART void *confirm_realloc(void *ctx, void *old, size_t size, int domain, int is_new)
{
    sonde_block was;
    size_t asked = is_new ? confirm(size) : 0;
    int is_known = old != NULL && sonde_heap_is_sampled(old) && sonde_heap_take(old, &was);
    void *block = pass_realloc(domain, ctx, old, size);
    if (is_known && block == NULL)
        sonde_heap_put_back(&was);
    else if (is_known)
        sonde_heap_freed(&was);
    if (asked && block != NULL)
        sonde_heap_add(block, asked, find_state(domain));
    return block;
}

static APART void confirm_free(void *ctx, void *block, int domain)
{
    sonde_block was;
    /* Before it is freed: afterwards its address may be somebody else's. */
    if (sonde_heap_take(block, &was))
        sonde_heap_freed(&was);
    pass_free(domain, ctx, block);
}

static inline void *large_malloc(int domain, void *ctx, size_t size)
{
    if (SELDOM(is_drawn(size)))
        return confirm_malloc(ctx, size, domain);
    return pass_malloc(domain, ctx, size);
}

static inline void *large_calloc(int domain, void *ctx, size_t n, size_t each)
{
    size_t size;
    if (SELDOM(!__builtin_mul_overflow(n, each, &size) && is_drawn(size)))
        return confirm_calloc(ctx, n, each, domain);
    return pass_calloc(domain, ctx, n, each);
}

static inline void *large_realloc(int domain, void *ctx, void *old, size_t size)
{
    int is_new = is_drawn(size);
    if (SELDOM(is_new || sonde_heap_is_sampled(old)))
        return confirm_realloc(ctx, old, size, domain, is_new);
    return pass_realloc(domain, ctx, old, size);
}

static inline void large_free(int domain, void *ctx, void *block)
{
    if (SELDOM(sonde_heap_is_sampled(block)))
        confirm_free(ctx, block, domain);
    else
        pass_free(domain, ctx, block);
}

/* ---- pymalloc --------------------------------------------------------------------------------- */

/* Begin to ask for a small block as if it were a larger one. All sizes are counted here, because that is
 * quicker than to leave some out; but a large block is passed on to `raw`, which draws for itself: 0. */
static int begin_draw(size_t size)
{
    sonde_store_relaxed(&sonde_heap_now.small_left, sonde_pace_draw());
    if (size > SMALL)
        return 0;
    drawn = size ? size : 1;
    sonde_add_relaxed(&sonde_heap_now.draws, 1);
    return 1;
}

static void end_draw(void)
{
    sonde_add_relaxed(&sonde_heap_now.draws, UINT32_MAX);
    drawn = 0;
}

static APART void *draw_malloc(void *ctx, size_t size, int domain)
{
    if (!begin_draw(size))
        return pass_malloc(domain, ctx, size);
    void *block = pass_malloc(domain, ctx, SMALL + 1);
    end_draw();
    return block;
}

static APART void *draw_calloc(void *ctx, size_t n, size_t each, int domain)
{
    size_t size;
    if (__builtin_mul_overflow(n, each, &size) || !begin_draw(size))
        return pass_calloc(domain, ctx, n, each);
    void *block = pass_calloc(domain, ctx, 1, SMALL + 1);
    end_draw();
    return block;
}

static APART void *draw_realloc(void *ctx, void *old, size_t size, int domain)
{
    if (!begin_draw(size))
        return pass_realloc(domain, ctx, old, size);
    void *block = pass_realloc(domain, ctx, old, SMALL + 1);
    end_draw();
    return block;
}

static inline void *small_malloc(int domain, void *ctx, size_t size)
{
    if (SELDOM(is_drawn_from(&sonde_heap_now.small_left, size)))
        return draw_malloc(ctx, size, domain);
    return pass_malloc(domain, ctx, size);
}

static inline void *small_calloc(int domain, void *ctx, size_t n, size_t each)
{
    if (SELDOM(is_drawn_from(&sonde_heap_now.small_left, n * each)))
        return draw_calloc(ctx, n, each, domain);
    return pass_calloc(domain, ctx, n, each);
}

static inline void *small_realloc(int domain, void *ctx, void *old, size_t size)
{
    if (SELDOM(is_drawn_from(&sonde_heap_now.small_left, size)))
        return draw_realloc(ctx, old, size, domain);
    return pass_realloc(domain, ctx, old, size);
}

/* ---- the hooks themselves ---------------------------------------------------------------------- */

#define HOOKS(name, size_class, domain)                                                       \
    static void *name##_malloc(void *ctx, size_t size)                                        \
    {                                                                                         \
        return size_class##_malloc(domain, ctx, size);                                        \
    }                                                                                         \
    static void *name##_calloc(void *ctx, size_t n, size_t each)                              \
    {                                                                                         \
        return size_class##_calloc(domain, ctx, n, each);                                     \
    }                                                                                         \
    static void *name##_realloc(void *ctx, void *block, size_t size)                          \
    {                                                                                         \
        return size_class##_realloc(domain, ctx, block, size);                                \
    }

#define FREE_HOOK(name, domain)                                                               \
    static void name##_free(void *ctx, void *block)                                           \
    {                                                                                         \
        large_free(domain, ctx, block);                                                       \
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
    {SMALL_ONLY(obj), WHOLE(whole_obj)}, {SMALL_ONLY(mem), WHOLE(whole_mem)}, {WHOLE(raw), WHOLE(raw)}};

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
    sonde_add_relaxed(&sonde_heap_now.draws, 1);
    probe(domain, size);
    int is_seen = drawn == 0;
    end_draw();
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
