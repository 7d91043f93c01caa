/* The one lock between the main interpreter and subinterpreters, which do not share a GIL.
 *
 * A subinterpreter holds it while it reads or writes what belongs to the recording. The main interpreter
 * takes it where subinterpreters could see half a change, and not at all before there was one. Between
 * lock and unlock no Python code may run and nothing may wait for a GIL. */
#ifndef SONDE_SUB_LOCK_H
#define SONDE_SUB_LOCK_H

#include <stddef.h>

/* Was there ever a subinterpreter with our module? Set with the GIL of the main interpreter, which
 * nobody holds in the middle of a change. */
extern int sonde_has_subs;

void sonde_sub_lock(void);
void sonde_sub_unlock(void);

/* In the main interpreter, where `sub` is NULL: take the lock if there are subinterpreters. Returns what
 * sonde_subs_let() is to be told. A subinterpreter has it already. */
static inline int sonde_subs_hold(const void *sub)
{
    if (sub != NULL || !sonde_has_subs)
        return 0;
    sonde_sub_lock();
    return 1;
}

static inline void sonde_subs_let(int is_held)
{
    if (is_held)
        sonde_sub_unlock();
}

#endif
