/* Signals that end the program: a last sample of all threads before they do. */
#ifndef SONDE_FATAL_SIGNAL_H
#define SONDE_FATAL_SIGNAL_H

#include "format/format.h"
#include "kernel/thread_place.h"

#include <signal.h>

enum { SONDE_FATAL_SIGNALS = 5 };

/* Their names, in the order of `texts`. */
extern const char *const sonde_fatal_names[SONDE_FATAL_SIGNALS];

/* Who is told. All of it must stay mapped until sonde_fatal_release(). */
typedef struct {
    sonde_control *page;
    sonde_ring_handle rows;
    uint32_t texts[SONDE_FATAL_SIGNALS];
} sonde_fatal_watch;

/* A row as its table lays it out; tables/stack.py names the columns. */
typedef struct {
    int64_t t_ns, thread;
    uint32_t signal; /* a text id */
    uint64_t address;
} sonde_fatal_row;

#define SONDE_FATAL_KINDS "qqtQ"
_Static_assert(sizeof(sonde_fatal_row) == 32, "fatal_signal layout");

/* From now on, have every thread sampled before one of the signals ends the program: those that
 * nobody handles, or Python's faulthandler. `interpreter` is any function of Python's. Returns how
 * many signals are handled by the program itself, which are left alone. */
int sonde_fatal_catch(const sonde_fatal_watch *watch, const void *interpreter);

/* See whether the program has given one of our signals a handler of its own since: whether that passes the signal on is
 * not known. One that nobody handles any more is taken again. `bus_ends`: see sonde_guard_ends(). Once in a while; the
 * native thread alone. */
void sonde_fatal_renew(int bus_ends);

/* Return the signals that were found so, as bits in the order of the names. Any thread. */
uint32_t sonde_fatal_lost(void);

/* Make the signals do again what they did before. */
void sonde_fatal_release(void);

/* Does this handler end the program: none at all, or Python's faulthandler? */
int sonde_fatal_ends(const struct sigaction *action);

/* Write down that this signal is about to end the program, and wait a moment until every thread has
 * been sampled. `context` is what the handler was given. Does nothing if nobody watches. Safe in a signal handler. */
void sonde_fatal_look(int number, const siginfo_t *info, const void *context);

/* A fault that is about to end the program. */
typedef struct {
    int64_t t_ns;
    uint32_t tid; /* its thread, which waits in there */
    sonde_thread_registers at;
} sonde_fault;

/* Return the fault that is looked at now; NULL if there is none. What it points to changes only once it is over.
 * Any thread. */
const sonde_fault *sonde_fatal_fault(void);

#endif
