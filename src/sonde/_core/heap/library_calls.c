/* Allocations of libraries: see library_calls.h.
 *
 * A block is never changed, so it does not matter who allocated it and who frees it. Many threads
 * without the GIL allocate here at once. So each counts for itself how many bytes are left until its
 * next sample: a number that all of them change would make each wait for the others.
 */
#define _GNU_SOURCE 1 /* reallocarray */
#include "heap/library_calls.h"
#include "heap/pace.h"
#include "heap/samples.h"

#include <malloc.h>
#include <stdlib.h>

#if SONDE_HAS_FRAMES && !defined(Py_GIL_DISABLED)

/* Apart from the hot path, which would have to make room for its variables. */
#define APART __attribute__((noinline, cold))
#define SELDOM(condition) __builtin_expect((condition), 0)

static __thread struct {
    int64_t left;  /* bytes until the next sample */
    uint32_t turn; /* in which that was drawn */
} of_thread;

static void *(*torch_alloc)(size_t);
static void (*torch_free)(void *);

/* May this block be sampled, or must the thread draw its next sample anew? confirm() knows. Only what was really
 * allocated is asked about: a size that fails may be any, and would be counted all the same. */
static inline int is_drawn(const void *block, size_t size)
{
    if (SELDOM(block == NULL))
        return 0;
    of_thread.left -= (int64_t)size;
    return of_thread.left <= 0 || of_thread.turn != sonde_load_relaxed(&sonde_heap_now.turn);
}

static APART int confirm(size_t size)
{
    uint32_t turn = sonde_load_relaxed(&sonde_heap_now.turn);
    if (of_thread.turn != turn) {
        of_thread.turn = turn;
        of_thread.left = sonde_pace_draw() - (int64_t)size;
        if (of_thread.left > 0)
            return 0;
    }
    of_thread.left = sonde_pace_draw();
    return 1;
}

static APART void note(void *block, size_t size) /* not const: gcc would complain of what it finds in a new block */
{
    if (confirm(size))
        sonde_heap_add(block, size ? size : 1, sonde_heap_thread());
}

/* To take the address of `free` itself would have our own calls go through its other address, where it has two. */
static void pass_free(void *block) { free(block); }

static APART void confirm_free(void *block, void (*pass)(void *))
{
    sonde_block was;
    /* Before it is freed: afterwards its address may be somebody else's. */
    if (sonde_heap_take(block, &was))
        sonde_heap_freed(&was);
    pass(block);
}

static APART void *confirm_realloc(void *old, size_t size)
{
    sonde_block was;
    int is_known = sonde_heap_take(old, &was);
    void *block = realloc(old, size);
    if (is_known && block == NULL && size != 0)
        sonde_heap_put_back(&was);
    else if (is_known)
        sonde_heap_freed(&was);
    return block;
}

void *sonde_library_malloc(size_t size)
{
    void *block = malloc(size);
    if (SELDOM(is_drawn(block, size)))
        note(block, size);
    return block;
}

void *sonde_library_calloc(size_t n, size_t each)
{
    void *block = calloc(n, each);
    if (SELDOM(is_drawn(block, n * each)))
        note(block, n * each);
    return block;
}

void *sonde_library_realloc(void *old, size_t size)
{
    void *block = SELDOM(sonde_heap_is_sampled(old)) ? confirm_realloc(old, size) : realloc(old, size);
    if (SELDOM(is_drawn(block, size)))
        note(block, size);
    return block;
}

void *sonde_library_reallocarray(void *old, size_t n, size_t each)
{
    size_t size;
    if (__builtin_mul_overflow(n, each, &size))
        return reallocarray(old, n, each);
    return sonde_library_realloc(old, size);
}

void *sonde_library_aligned_alloc(size_t alignment, size_t size)
{
    void *block = aligned_alloc(alignment, size);
    if (SELDOM(is_drawn(block, size)))
        note(block, size);
    return block;
}

void *sonde_library_memalign(size_t alignment, size_t size)
{
    void *block = memalign(alignment, size);
    if (SELDOM(is_drawn(block, size)))
        note(block, size);
    return block;
}

int sonde_library_posix_memalign(void **block, size_t alignment, size_t size)
{
    int status = posix_memalign(block, alignment, size);
    if (SELDOM(status == 0 && is_drawn(*block, size)))
        note(*block, size);
    return status;
}

void sonde_library_free(void *block)
{
    if (SELDOM(sonde_heap_is_sampled(block)))
        confirm_free(block, pass_free);
    else
        free(block);
}

void sonde_torch_calls(void *alloc, void *release)
{
    torch_alloc = (void *(*)(size_t))alloc;
    torch_free = (void (*)(void *))release;
}

void *sonde_torch_alloc(size_t size)
{
    void *block = torch_alloc(size); /* raises if there is none */
    if (SELDOM(is_drawn(block, size)))
        note(block, size);
    return block;
}

void sonde_torch_free(void *block)
{
    if (SELDOM(sonde_heap_is_sampled(block)))
        confirm_free(block, torch_free);
    else
        torch_free(block);
}

#endif
