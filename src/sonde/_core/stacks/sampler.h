/* The sampler: what the native thread does when a sample is due. */
#ifndef SONDE_SAMPLER_H
#define SONDE_SAMPLER_H

#include "stacks/threads.h" /* before all others: Python.h must be the first */
#include "stacks/crash_stacks.h"
#include "stacks/lock_waits.h"
#include "stacks/native_frames.h"

/* Rows as their tables lay them out; tables/stack.py names the columns. */
typedef struct {
    int64_t t_ns, thread;
    uint64_t stack; /* a hash; in the table a signed number, which every engine knows */
    uint32_t samples;
    int64_t wall_ns, cpu_ns;
    uint8_t gil, idle;
    uint32_t interpreter;
    uint32_t wait; /* a text id */
    int64_t queue_ns;
    uint32_t call; /* a text id */
} sonde_sample_row;

typedef struct {
    int64_t t_ns, thread;
    uint32_t name, state; /* text ids */
} sonde_thread_row;

typedef struct {
    int64_t t_ns;
    uint64_t due, taken, samples, torn, skipped_interpreters, cut;
    int64_t cpu_ns;
    uint32_t threads, stacks;
    uint64_t stacks_lost, native, native_lost;
} sonde_sampling_row;

#define SONDE_SAMPLE_KINDS "qqqIqq??Itqt"
#define SONDE_THREAD_KINDS "qqtt"
#define SONDE_SAMPLING_KINDS "qQQQQQQqIIQQQ"

_Static_assert(sizeof(sonde_sample_row) == 80, "stack_sample layout");
_Static_assert(sizeof(sonde_thread_row) == 24, "thread layout");
_Static_assert(sizeof(sonde_sampling_row) == 96, "sampling layout");

#define SONDE_DOUBTS 64

typedef struct {
    /* Where to write; whoever sets these keeps the memory mapped. */
    sonde_ring_handle samples, thread_rows, sampling, holds, loops, lock_waits;
    const sonde_intern_handle *text;
    sonde_nodes_handle nodes; /* with an index while samples are taken */
    sonde_control *page;
    char *folder;        /* of the session */
    int64_t interval_ns; /* the one in force: `every_ns`, or that of the run if it is shorter */
    int64_t every_ns;
    int is_slow; /* stacks come through sonde_sampler_take() */

    int64_t base_ns, due_ns, last_ns; /* of period 0, the next sample and the last one */
    int64_t since_ns;                 /* what the first samples stand for begins here; 0: now */
    uint64_t period;                  /* the period that `due_ns` is in */
    uint64_t seed;
    sonde_threads threads;
    uint32_t cursor; /* the thread at which the time for one sample ran out last */
    int64_t scanned_ns, sums_ns;
    int must_scan;
    uint32_t searches;  /* of the interpreters besides the main one */
    uint32_t inners;    /* threads that were in two interpreters at the last search */
    int64_t moved_ns;   /* when a stack was last seen to change, or a thread to begin or end */
    uint32_t lost_node; /* the node that gets the time of stacks that found no room */
    uint64_t doubts[SONDE_DOUBTS]; /* calls that were seen only once */
    uint32_t doubts_n;
    uint32_t cut_text, empty_text, started_text, named_text, ended_text, main_text;
    uint32_t wait_texts[SONDE_WAIT_KINDS];
    int knows_locks; /* how locks lie in memory */
    uint32_t lock_text, rlock_text, end_text;
    uint32_t unnamed; /* threads whose names only Python knows */
    int was_off;
    int wants_stacks; /* if is_slow: a sample is due */
    uint32_t own_tid;   /* of the native thread */
    int64_t own_cpu_ns; /* CPU time of the native threads before this one */
    uint32_t helper_tid; /* atomic: a thread of ours that runs Python; it is not sampled */
    sonde_native_frames native;
    sonde_crash_stacks crash;
    sonde_sampling_row sums;
} sonde_sampler;

/* ---- one sample (sample.c) ---------------------------------------------------- */

/* Return the node of a stack; 0 if the stack is doubtful. */
uint32_t sonde_sample_stack(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_stack *stack,
                           int is_strict);

/* Count a sample whose stack found no room. Returns the node that gets its time. */
uint32_t sonde_sample_lose(sonde_sampler *s);

/* What was seen of a thread, apart from its stack. */
typedef struct {
    int64_t now_ns;
    int64_t cpu_ns; /* used since its last sample */
    enum sonde_wait_kind wait; /* it slept or waited: neither on a CPU nor for one */
    int is_same;    /* its stack and GIL are as in its last sample */
    int everyone;   /* nothing may be held back */
} sonde_sample_facts;

/* Count a sample of this thread at its node. */
void sonde_sample_count(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_sample_facts *facts);

/* Write the samples that are held back. */
void sonde_sample_release(sonde_sampler *s, sonde_sampled_thread *thread);

/* Write the samples that are held back and the CPU time that no sample has got: the thread ends. */
void sonde_sample_settle(sonde_sampler *s, sonde_sampled_thread *thread);

/* Forget threads.list[at], which has ended. */
void sonde_sample_end(sonde_sampler *s, uint32_t at);

void sonde_sample_thread(sonde_sampler *s, sonde_sampled_thread *thread, uint32_t state);
void sonde_sample_sums(sonde_sampler *s, int64_t now_ns);

/* ---- event loops (loops.c) ------------------------------------------------------------ */

/* See whether a thread, whose stack was just read, is in a callback of an event loop. */
void sonde_loop_see(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_stack *stack);

/* Count a sample, which stands for `wall_ns`, of a thread that may run a loop. */
void sonde_loop_count(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_sample_facts *facts,
                      int64_t wall_ns);

/* Write what is known of the thread's loop: it ends, or nobody looks for a while. */
void sonde_loop_rest(sonde_sampler *s, sonde_sampled_thread *thread);

/* Return whether any thread runs a loop. */
int sonde_loop_is_any(const sonde_sampler *s);

/* ---- locks (lock_waits.c) -------------------------------------------------------------- */

/* Write a row about each thread that has waited for a lock for a second, and again from time to time;
 * if `everyone`, about each that waits for one now. Native thread only. */
void sonde_lock_waits_look(sonde_sampler *s, int64_t now_ns, int everyone);

/* ---- which threads there are (thread_search.c) ------------------------------------- */

/* Find the threads that are new. Native thread only. */
void sonde_sampler_search(sonde_sampler *sampler, int64_t now_ns);

/* ---- sampler -------------------------------------------------------------------- */

/* Get ready; the fields of the first group are set. Returns 0 or -errno. */
int sonde_sampler_open(sonde_sampler *sampler);

/* Take a sample if it is due, or one of every thread if `everyone`. Returns when the next one is
 * due. Called by the native thread, without the GIL. */
int64_t sonde_sampler_turn(sonde_sampler *sampler, int everyone);

/* Note that the native thread is about to end; another one may go on. */
void sonde_sampler_rest(sonde_sampler *sampler);

/* Change the interval. The caller makes sure that sonde_sampler_turn() is not running. */
void sonde_sampler_set_interval(sonde_sampler *sampler, int64_t interval_ns);

/* Give a thread (of sampler->threads) its name. The caller makes sure that sonde_sampler_turn()
 * is not running. */
void sonde_sampler_name(sonde_sampler *sampler, sonde_sampled_thread *thread, uint32_t name);

/* Return the id of a stack that somebody else has read, outermost frame first, for python.frame; 0 if
 * there is no room for it. The caller makes sure that sonde_sampler_turn() is not running. */
uint64_t sonde_sampler_put(sonde_sampler *sampler, const sonde_frame_key *keys, int n);

/* Take a stack that somebody else has read, outermost frame first. sonde_sampler_taken() ends a
 * round of these: threads that were not in it have ended. */
void sonde_sampler_take(sonde_sampler *sampler, uint32_t tid, const sonde_frame_key *keys, int n,
                        int holds_gil);
void sonde_sampler_taken(sonde_sampler *sampler, int64_t begin_ns);

/* Write the samples that are held back, and the sums. */
void sonde_sampler_close(sonde_sampler *sampler);

extern PyTypeObject sonde_SamplerType;
extern PyMethodDef sonde_locals_methods[];
extern PyMethodDef sonde_running_loops_methods[];

/* ---- runs (stack_sums.c), which the native thread begins and ends ---------------------------- */

/* Was a run asked for? If so, first sample every thread, then call sonde_run_begin(). */
int sonde_run_begins(const sonde_sampler *sampler);
void sonde_run_begin(sonde_sampler *sampler);

/* Return when the current run ends; INT64_MAX if there is none. */
int64_t sonde_run_ends(const sonde_sampler *sampler);
void sonde_run_end(sonde_sampler *sampler);

#endif
