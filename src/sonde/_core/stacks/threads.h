/* The threads that the sampler knows, by the address of their state. */
#ifndef SONDE_THREADS_H
#define SONDE_THREADS_H

#include "stacks/frames.h" /* before all others: Python.h must be the first */
#include "kernel/thread_wait.h"
#include "stacks/loops.h"

/* One frame of the stack that a thread was last seen with. */
typedef struct {
    uint32_t code; /* sonde_code.id */
    int32_t line;
    uint32_t node;
} sonde_step;

typedef struct {
    sonde_view view;
    uint32_t tid;
    uint32_t name; /* text id; 0: not known */
    int has_row;   /* it has a row in python.thread */
    int64_t row_ns; /* when its newest row was written */
    int64_t cpu_ns;  /* its CPU clock at the last sample; -1: none yet */
    int64_t seen_ns; /* when it was last sampled; 0: never */
    int64_t owed_ns; /* CPU time that belongs to a later sample */
    uint32_t node;   /* the node of its stack then; 0: none */
    int holds_gil;
    int is_bare; /* it ran no Python when it was last looked at: it may not have begun, and be named after its maker */
    uint32_t interpreter; /* the number of the one that it ran */
    uint32_t number;      /* that of the interpreter whose thread it is */
    /* If it is in another interpreter, too: where it is there, and the search that found this. */
    sonde_view inner;
    uint32_t inner_number, inner_search;
    enum sonde_wait_kind wait; /* what it waited for then, other than a CPU */
    int is_in_condition; /* its innermost function is Condition.wait */
    int64_t stood_ns; /* since when it has used no CPU time */
    int64_t look_ns;  /* when it is to be looked at again, if it still waits for a lock */
    uint32_t unanswered; /* questions for its native frames without an answer, since the last one */
    uint32_t call; /* text id of the C function that it was calling then; 0: none */
    int64_t queue_ns; /* how long it had waited for a CPU when that was last asked; -1: not known */
    sonde_loop *loop; /* NULL: it was never seen to run an event loop */
    uint32_t poll_node; /* where it last waited for input, and its turn (see sonde_stack) then */
    uint64_t poll_turn;
    sonde_step *path; /* root first */
    int path_n, path_room;
    /* Samples that are not written yet because they are like the last row: no CPU time, same
     * stack. */
    uint32_t held;
    int64_t held_wall_ns, held_since_ns, held_ns;
} sonde_sampled_thread;

typedef struct {
    sonde_sampled_thread **list;
    uint32_t count, room;
    sonde_sampled_thread **index; /* open addressing; a power of two */
    uint32_t slots;
} sonde_threads;

sonde_sampled_thread *sonde_threads_find(const sonde_threads *threads, uintptr_t state);

/* Find the thread of the main interpreter with this id, one by one; NULL if there is none. */
sonde_sampled_thread *sonde_threads_find_tid(const sonde_threads *threads, uint32_t tid);

/* Add a new thread, zeroed; NULL if there is no memory. */
sonde_sampled_thread *sonde_threads_add(sonde_threads *threads, uintptr_t state);

/* Remove list[at] and free it; the last one moves into its place. */
void sonde_threads_remove(sonde_threads *threads, uint32_t at);
void sonde_threads_clear(sonde_threads *threads);

#endif
