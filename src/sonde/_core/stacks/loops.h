/* Event loops: which threads run one, and how long each callback keeps it. */
#ifndef SONDE_LOOPS_H
#define SONDE_LOOPS_H

#include "kernel/thread_wait.h"

#include <stddef.h>
#include <stdint.h>

/* What a function is to an event loop. */
enum sonde_loop_part {
    SONDE_LOOP_NOTHING,
    SONDE_LOOP_ITSELF,   /* asyncio's own loop, which is written in Python */
    SONDE_LOOP_CALLBACK, /* runs one callback of asyncio's loop */
    SONDE_LOOP_RUNNER,   /* runs a loop of any kind: what it calls is the loop or a callback */
};

/* Return what the function of this name (of `name_bytes` bytes) may be; the file decides. */
int sonde_loop_name(const char *name, size_t name_bytes);
enum sonde_loop_part sonde_loop_part(int name, const char *file, size_t file_bytes);

/* What is remembered of a thread that runs an event loop. */
typedef struct {
    uint32_t entry;  /* the node of the stack whose innermost function runs the loop, where that was */
    int entry_depth; /* found out by looking; and how deep it is */
    int is_on;       /* it runs a loop now */
    int is_inside;   /* it is in a callback */
    uint64_t turn;   /* changes with each callback that begins or ends */
    uint32_t callback; /* the text of its function; 0: it is written in C */
    /* The callback that keeps the loop: it was seen in several samples, and never another one between
     * them. 0: none. */
    int64_t since_ns, written_ns, seen_ns, cpu_ns;
    int64_t wait_ns[SONDE_WAIT_KINDS];
    uint32_t samples;
    uint32_t node; /* the stack that took most of the time, and by how much */
    int64_t node_ns;
    /* Sums since the last row about the loop. */
    int64_t sums_ns, idle_ns, held_ns, longest_ns;
    uint64_t sums_turn;
} sonde_loop;

/* Rows as their tables lay them out; tables/stack.py names the columns. */
typedef struct {
    int64_t t_ns, dur_ns, held_ns, thread;
    uint32_t callback; /* a text id */
    uint64_t stack;
    uint32_t samples;
    int64_t cpu_ns;
    uint32_t wait; /* a text id */
} sonde_hold_row;

typedef struct {
    int64_t t_ns, thread, wall_ns, idle_ns;
    uint64_t callbacks;
    int64_t held_ns, longest_ns;
} sonde_loop_row;

#define SONDE_HOLD_KINDS "qqqqtqIqt"
#define SONDE_LOOP_KINDS "qqqqQqq"

_Static_assert(sizeof(sonde_hold_row) == 72, "loop_hold layout");
_Static_assert(sizeof(sonde_loop_row) == 56, "event_loop layout");

#endif
