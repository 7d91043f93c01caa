/* What a thread of this process waits for, as the kernel knows it. */
#ifndef SONDE_THREAD_WAIT_H
#define SONDE_THREAD_WAIT_H

#include <stdint.h>

enum sonde_wait_kind {
    SONDE_WAIT_NONE, /* it runs, or waits for nothing but a CPU */
    SONDE_WAIT_OTHER,
    SONDE_WAIT_LOCK,
    SONDE_WAIT_GIL, /* never found here: only Python knows which lock that is */
    SONDE_WAIT_SLEEP,
    SONDE_WAIT_POLL,
    SONDE_WAIT_NETWORK,
    SONDE_WAIT_PIPE,
    SONDE_WAIT_CHILD,
    SONDE_WAIT_DISK,
    SONDE_WAIT_FAULT,
    SONDE_WAIT_DEVICE,
    SONDE_WAIT_SHARED_LOCK, /* one that another process may give back */
    SONDE_WAIT_KINDS
};

/* Their names, in order; that of SONDE_WAIT_NONE is empty. */
extern const char *const sonde_wait_names[SONDE_WAIT_KINDS];

typedef struct {
    enum sonde_wait_kind kind;
    uint64_t lock; /* the address of the word that it waits for, if `kind` is SONDE_WAIT_LOCK */
} sonde_thread_wait;

/* Ask the kernel where a thread of this process is. This takes some microseconds. No allocation;
 * any thread. */
sonde_thread_wait sonde_wait_find(uint32_t tid);

/* Return why the kernel does not tell what threads wait for, as an errno, if a question found that; else 0.
 * Any thread. */
int sonde_wait_refusal(void);

/* Find where a thread of this process entered the kernel: its place in its code, and on its stack. Returns 0,
 * or -EAGAIN if it is not in the kernel. Any thread. */
int sonde_wait_place(uint32_t tid, uint64_t *pc, uint64_t *sp);

/* Return the time that a thread has waited for a CPU so far, in nanoseconds; -1 if the kernel does
 * not tell. This takes some microseconds, too. */
int64_t sonde_wait_queue(uint32_t tid);

#endif
