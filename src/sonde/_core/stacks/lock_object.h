/* Python's locks, as they lie in memory: read without the GIL. */
#ifndef SONDE_LOCK_OBJECT_H
#define SONDE_LOCK_OBJECT_H

#include "stacks/frames.h"

#if SONDE_HAS_FRAMES && !defined(Py_GIL_DISABLED)
#define SONDE_HAS_LOCKS 1
#else
#define SONDE_HAS_LOCKS 0
#endif

enum sonde_lock_kind { SONDE_LOCK, SONDE_RLOCK };

typedef struct {
    enum sonde_lock_kind kind;
    uintptr_t object;
    uintptr_t word;  /* the address that the kernel, or Python's parking lot, knows it by */
    uintptr_t owner; /* pthread_self() of the thread that holds it; 0: nobody does, or the kind does not say */
    int is_held;
    int is_wanted; /* somebody waits for it; until 3.13 it does not say, and this is 1 */
} sonde_lock;

/* Find out how locks lie in memory here. Returns 0, or -ENOSYS if that is not as it is known: then
 * no object is a lock. Needs the GIL. */
int sonde_locks_prepare(void);

/* Read what may be a lock, or a method that is bound to one. Returns 0, or -1 if it is neither. */
int sonde_lock_read(uintptr_t value, sonde_lock *lock);

/* Can this be the lock that a thread waits for, if the kernel says that it waits for this word? Until 3.13
 * that is certain; from 3.14 on the word is one of the thread's own. */
int sonde_lock_is_awaited(const sonde_lock *lock, uintptr_t word);

/* Read the lock of a `with` block, given the two values that Python keeps on the stack of the frame for
 * as long as the block lasts (before 3.14 the upper one alone). Returns 0, or -1 if it is not a lock's. */
int sonde_lock_read_with(uintptr_t lower, uintptr_t upper, sonde_lock *lock);

/* Is this the function in which a thread waits for a condition, having given its lock back? `name` tells
 * whether it may be; the file decides. */
int sonde_condition_name(const char *name, size_t name_bytes);
int sonde_condition_file(const char *file, size_t file_bytes);

#endif
