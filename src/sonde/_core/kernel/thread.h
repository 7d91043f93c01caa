/* Threads, as the kernel knows them. */
#ifndef SONDE_THREAD_H
#define SONDE_THREAD_H

#include "kernel/fork.h"

#include <pthread.h>

/* Start a native thread of ours, which has a small stack and gets no signals. Returns 0 or
 * -errno. */
int sonde_thread_start(void *(*body)(void *), void *arg, pthread_t *thread);

/* Wait, for some milliseconds at most, until the kernel has forgotten the threads of ours that have ended. It
 * counts a thread for a moment longer than pthread_join() waits for it, and Python counts with it at a fork. */
void sonde_threads_await_gone(void);

/* Sleep for good instead of ending: a thread ends with calls that a filter may forbid. Sets `*parked` when it
 * is done with everything else; never returns. */
void sonde_thread_park(uint32_t *parked);

/* Wait until a thread has done that. */
void sonde_thread_await_parked(uint32_t *parked);

/* Have the kernel run this thread as soon as it wakes, for a moment, even if others are running.
 * Needs no rights; nothing happens before Linux 6.12, or where system calls are filtered. */
void sonde_thread_be_prompt(void);

/* Return the CPU time of a thread of this process in nanoseconds; -1 if there is no such thread. */
int64_t sonde_thread_cpu(uint32_t tid);

/* The kernel's id of this thread. PyThreadState's will not do: a program in C may make a state in
 * one thread and use it in another. */
typedef struct {
    uint32_t forks; /* sonde_forks when the kernel was asked */
    int32_t tid;
} sonde_thread_id;

extern __thread sonde_thread_id sonde_thread_me;

int32_t sonde_thread_ask(void);

/* Return the kernel's id of this thread; the kernel is asked once in each thread and process. */
static inline int32_t sonde_find_tid(void)
{
    return sonde_thread_me.forks == sonde_forks ? sonde_thread_me.tid : sonde_thread_ask();
}

#endif
