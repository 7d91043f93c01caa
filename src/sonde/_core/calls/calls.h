/* What the files of the call tracer share. Everything here needs the GIL.
 *
 * A thread has a shadow stack of its current calls, and tables of its own: a node for each
 * function, and an edge for each pair of caller and callee. Only recursion needs the level of a
 * node on every event, so calls and own time are kept in edges alone; those of a function are the
 * sum of its edges. Functions and links hold the numbers of all threads together, which are
 * worked out when they are published.
 *
 * Times are ticks of the processor's counter until they are published.
 */
#ifndef SONDE_CALLS_H
#define SONDE_CALLS_H

#include "binding/binding.h"

/* ---- clock (counter.c) --------------------------------------------------------- */

extern int sonde_has_counter;

/* Read the processor's counter where it is reliable: that costs a quarter of reading the clock. */
static inline int64_t sonde_ticks(void)
{
#if defined(__aarch64__)
    int64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    if (sonde_has_counter)
        return (int64_t)__builtin_ia32_rdtsc();
    return sonde_clock_ns();
#endif
}

/* Call this before the first sonde_ticks(). */
void sonde_ticks_init(void);

/* One moment on both clocks. */
typedef struct {
    int64_t ticks, ns;
} sonde_moment;

static inline sonde_moment sonde_read_moment(void)
{
    int64_t ticks = sonde_ticks();
    return (sonde_moment){ticks, sonde_clock_ns()};
}

/* Nanoseconds per tick as a fraction, measured between two moments. */
typedef struct {
    uint64_t ns, ticks;
} sonde_rate;
sonde_rate sonde_ticks_rate(const sonde_moment *begin, const sonde_moment *now);
int64_t sonde_ticks_to_ns(sonde_rate rate, int64_t ticks);

typedef struct {
    int64_t calls, recursive, own, total; /* recursive: calls inside a call of the same function */
} sonde_numbers;

/* What the newest row says: in ticks, to see what has changed, and in ns, as published. */
typedef struct {
    sonde_numbers numbers;
    int64_t own_ns, total_ns;
} sonde_published;

/* A code object or a builtin, in any thread. */
typedef struct sonde_function {
    const void *key;      /* the PyCodeObject or PyMethodDef */
    PyObject *code;       /* keeps that address from being reused; NULL for builtins */
    PyObject *name, *file;
    long lineno;
    uint32_t copies;      /* functions with the same label, counted in the first of them */
    int is_coroutine;
    sonde_numbers past, sum; /* of threads and coroutines that have ended; of all, now */
    sonde_published published;
} sonde_function;

/* Who called whom, in any thread; caller NULL: we saw no caller. */
typedef struct {
    sonde_function *caller, *callee;
    sonde_numbers past, sum;
    sonde_published published;
} sonde_link;

typedef struct sonde_edge sonde_edge;

typedef struct {
    sonde_function *function; /* NULL: the thread's bottom */
    sonde_edge *recent;       /* the edge to what it called last; never NULL */
    int64_t level, recursive, total;
    int64_t flight; /* while publishing: levels seen so far */
} sonde_called;

struct sonde_edge {
    const void *key; /* of the callee; NULL in the edge below the bottom */
    sonde_called *caller, *callee;
    sonde_link *link;
    int is_coroutine;
    int64_t level;
    sonde_numbers numbers;
    int64_t flight;
};

typedef struct {
    sonde_edge *edge;
    int64_t start, inner; /* inner: ticks spent in the calls that it made */
} sonde_call;

/* A set of pointers with open addressing; NULL is free. At most half full. */
typedef struct {
    void **slots;
    size_t size, used; /* size: a power of two, or 0 */
} sonde_set;

typedef struct sonde_call_thread {
    struct sonde_call_thread *next;
    uint32_t owners; /* atomic: the tracer, and the thread itself until it ends */
    uint32_t ended;  /* atomic */
    unsigned long ident; /* pthread_self */
    uint64_t state_id;   /* of its PyThreadState */
    int claimed;         /* the thread itself uses it */
    int64_t last;        /* time of the newest event: time never runs backwards */
    sonde_call *stack, *top, *limit;
    sonde_set nodes, edges;
    sonde_called bottom;
    sonde_edge below;
} sonde_call_thread;

/* A coroutine that has begun and not ended; it is one call, however often it is resumed. */
typedef struct {
    const void *frame;
    int64_t start;
    sonde_function *caller, *callee;
    int is_outer_call, is_outer_edge; /* not inside another call of the same */
} sonde_awaited;

/* The one tracer of this process. */
typedef struct {
    uint64_t epoch; /* changes at every start and stop: what threads remember is then void */
    sonde_moment begin;
    int64_t publish_at;         /* in ticks */
    void (*publish_due)(void);  /* called when that time has passed */
    uint32_t first; /* the first publication of this run; 0: none yet */
    uint64_t rows_since_full; /* rows written since the last publication of all rows */
    int is_unsure; /* the last publication may have lost rows */
    sonde_call_thread *threads;
    sonde_set functions, labels, links, awaited;
    PyObject *muted; /* until this code returns, its thread is not traced; or NULL */
    sonde_function *crowd; /* stands for all functions beyond SONDE_MAX_FUNCTIONS */
} sonde_call_state;

extern sonde_call_state sonde_calls;
extern PyTypeObject sonde_CallTracerType;

#define SONDE_MAX_FUNCTIONS (1u << 18)
#define SONDE_MAX_CALLS (1 << 20)

/* ---- tables (set.c, function.c, table.c) ----------------------------------------- */

/* What was called: a code object, or a builtin with what it is bound to. */
typedef struct {
    const void *key;
    PyObject *code;    /* or NULL */
    PyObject *builtin; /* PyCFunction or method descriptor, or NULL */
} sonde_callee;

static inline size_t sonde_hash(const void *a, const void *b)
{
    uint64_t mixed = ((uintptr_t)a * 3 ^ (uintptr_t)b) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(mixed >> 32);
}

/* Make room for one more item, and add an item. Both return 0, or -1 if there is no memory; after
 * reserve, the next add does not fail. `hash_of` finds an item's place again. */
int sonde_set_reserve(sonde_set *set, size_t (*hash_of)(const void *item));
int sonde_set_add(sonde_set *set, size_t (*hash_of)(const void *item), void *item);
void sonde_set_remove(sonde_set *set, size_t (*hash_of)(const void *item), size_t at);
/* Empty the set. `release` gets every item, and may find the set empty already. */
void sonde_set_clear(sonde_set *set, void (*release)(void *item));

/* Return the function that was called, which is made if it is new; NULL if there is no memory:
 * that call is then not counted. */
sonde_function *sonde_function_find(const sonde_callee *callee);
/* Return the function with this key, or NULL if it is not known. */
sonde_function *sonde_function_get(const void *key);
void sonde_function_free(void *function);
sonde_called *sonde_called_find(sonde_call_thread *calls, sonde_function *function);
sonde_edge *sonde_edge_find(sonde_call_thread *calls, sonde_called *caller, const sonde_callee *callee);
sonde_link *sonde_link_find(sonde_function *caller, sonde_function *callee);

sonde_call_thread *sonde_call_thread_make(unsigned long ident, uint64_t state_id);
int sonde_call_thread_grow(sonde_call_thread *calls);
/* Add a thread's numbers to functions and links, and drop its tables. */
void sonde_call_thread_fold(sonde_call_thread *calls);
void sonde_call_thread_release(sonde_call_thread *calls);
void sonde_calls_clear(void);

/* ---- events ------------------------------------------------------------------------ */

/* Handle the return of a call that is not the top one: the stack was switched, or we missed an
 * event. */
void sonde_leave_other(sonde_call_thread *calls, const void *key, const void *frame, int ended);
/* The top call is a coroutine that begins (or began before us) or goes on; or one that pauses or
 * ends. */
void sonde_await_begin(sonde_call_thread *calls, const void *frame, int is_new);
void sonde_await_leave(sonde_call_thread *calls, const void *frame, int ended);

static inline void sonde_tick(sonde_call_thread *calls)
{
    int64_t now = sonde_ticks();
    if (now > calls->last)
        calls->last = now;
}

/* Begin a call. Returns it, or NULL if it is not counted. */
static inline sonde_call *sonde_enter(sonde_call_thread *calls, const sonde_callee *callee)
{
    sonde_call *top = calls->top;
    sonde_called *caller = top->edge->callee;
    sonde_edge *edge = caller->recent;
    if (edge->key != callee->key) {
        edge = sonde_edge_find(calls, caller, callee);
        if (edge == NULL)
            return NULL;
        caller->recent = edge;
    }
    if (top + 1 == calls->limit) {
        if (sonde_call_thread_grow(calls) < 0)
            return NULL;
        top = calls->top;
    }
    edge->level++;
    edge->callee->level++;
    top++;
    top->edge = edge;
    top->start = calls->last;
    top->inner = 0;
    calls->top = top;
    return top;
}

/* End the top call. */
static inline void sonde_leave(sonde_call_thread *calls)
{
    sonde_call *top = calls->top;
    sonde_edge *edge = top->edge;
    sonde_called *node = edge->callee;
    int64_t total = calls->last - top->start;
    edge->numbers.calls++;
    edge->numbers.own += total - top->inner;
    if (--edge->level == 0)
        edge->numbers.total += total;
    else
        edge->numbers.recursive++;
    if (--node->level == 0)
        node->total += total;
    else
        node->recursive++;
    top[-1].inner += total;
    calls->top = top - 1;
}

/* Does the tracer (still) see this thread? Before 3.12 a program may replace our profile function. */
int sonde_is_hooked(unsigned long ident);

/* ---- publication (publish.c) --------------------------------------------------------- */

/* Write what has changed since the last publication. Returns 0, or -1 with an exception if there
 * is no memory. */
int sonde_publish(PyObject *rows, PyObject *publications);

#endif
