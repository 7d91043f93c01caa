/* What the files of the call tracer share. Everything here needs the GIL.
 *
 * A thread has a shadow stack of its current calls, and tables of its own: a node per
 * function, and an edge per pair of caller and callee. Only recursion needs the level of
 * a node on every event, so calls and own time are kept in edges alone; those of a function
 * are the sum of its edges. Functions and links hold what all threads found together;
 * that is worked out when it is published.
 *
 * Times are ticks of the processor's counter until they are published.
 */
#ifndef SONDE_CALLS_H
#define SONDE_CALLS_H

#include "binding/binding.h"

/* ---- clock (counter.c) --------------------------------------------------------- */

extern int sonde_has_counter;

/* The processor's counter where it is reliable: it costs a quarter of the clock. */
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

/* Before the first sonde_ticks(). */
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

/* Ticks per nanosecond as a fraction, measured between two moments. */
typedef struct {
    uint64_t ns, ticks;
} sonde_rate;
sonde_rate sonde_ticks_rate(const sonde_moment *begin, const sonde_moment *now);
int64_t sonde_ticks_to_ns(sonde_rate rate, int64_t ticks);

typedef struct {
    int64_t calls, recursive, own, total; /* recursive: calls inside one of the same */
} sonde_numbers;

/* What the newest row says: in ticks, to see what changed, and in ns, as it was published. */
typedef struct {
    sonde_numbers numbers;
    int64_t own_ns, total_ns;
} sonde_published;

/* A code object or a builtin, in any thread. */
typedef struct sonde_function {
    const void *key;      /* the PyCodeObject or PyMethodDef */
    PyObject *code;       /* keeps that address from being used again; NULL for builtins */
    PyObject *name, *file;
    long lineno;
    uint32_t copies;      /* functions with the same label, counted in the first of them */
    int is_coroutine;
    sonde_numbers past, sum; /* of threads and coroutines that ended; of all, now */
    sonde_published published;
} sonde_function;

/* Who called whom, in any thread; caller NULL: nobody that we saw. */
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
    int64_t start, inner; /* inner: ticks spent in what it called */
} sonde_call;

/* Pointers, open addressing; NULL is free. At most half full. */
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
    int claimed;         /* the thread itself has found it */
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
    int is_outer_call, is_outer_edge; /* not inside a call of the same */
} sonde_awaited;

/* The one tracer of this process. */
typedef struct {
    uint64_t epoch; /* changes at every start and stop: what threads remember is then void */
    sonde_moment begin;
    int64_t publish_at;         /* in ticks */
    void (*publish_due)(void);  /* to be called when that has passed */
    uint32_t first; /* the first publication of this run; 0: none yet */
    uint64_t rows_since_full; /* rows written since all were */
    int is_unsure; /* the last one may have lost rows */
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

/* 0, or -1 if there is no memory; after reserve, the next add does not fail.
 * `hash_of` finds an item's place again. */
int sonde_set_reserve(sonde_set *set, size_t (*hash_of)(const void *item));
int sonde_set_add(sonde_set *set, size_t (*hash_of)(const void *item), void *item);
void sonde_set_remove(sonde_set *set, size_t (*hash_of)(const void *item), size_t at);
/* Empty it; `release` gets every item, and may find the set empty already. */
void sonde_set_clear(sonde_set *set, void (*release)(void *item));

/* NULL where there is no memory: that call is then not counted. */
sonde_function *sonde_function_find(const sonde_callee *callee);
/* The function with this key, if it is known. */
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

/* A return of a call that is not the top one: a stack switch, or an event that we never got. */
void sonde_leave_other(sonde_call_thread *calls, const void *key, const void *frame, int ended);
/* The top call is a coroutine: it begins (or began before us) or goes on; it stops or ends. */
void sonde_await_begin(sonde_call_thread *calls, const void *frame, int is_new);
void sonde_await_leave(sonde_call_thread *calls, const void *frame, int ended);

static inline void sonde_tick(sonde_call_thread *calls)
{
    int64_t now = sonde_ticks();
    if (now > calls->last)
        calls->last = now;
}

/* The call that begins now, or NULL if it is not counted. */
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

/* The top ends now. */
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

/* Write what changed since the last publication; -1 with an exception if there is no memory. */
int sonde_publish(PyObject *rows, PyObject *publications);

#endif
