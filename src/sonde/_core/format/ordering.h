/* Memory order: every atomic access of the core goes through a name of this file.
 *
 * Each use has a comment that says what is ordered before what. The names say how:
 *   relaxed  the value itself is never torn; nothing else is ordered by it.
 *   acquire  whatever the writer wrote before its release is visible after this.
 *   release  whatever this thread wrote before is visible to whoever acquires it.
 *   ordered  both of them, for a number that several writers change.
 *   total    all threads agree on one order of all such accesses, loads included.
 */
#ifndef SONDE_ORDERING_H
#define SONDE_ORDERING_H

#define sonde_load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define sonde_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define sonde_load_total(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)

#define sonde_store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define sonde_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define sonde_store_total(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)

/* These return the value before the change. */
#define sonde_add_relaxed(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define sonde_add_release(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELEASE)
#define sonde_add_total(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define sonde_and_relaxed(p, v) __atomic_fetch_and((p), (v), __ATOMIC_RELAXED)
#define sonde_or_relaxed(p, v) __atomic_fetch_or((p), (v), __ATOMIC_RELAXED)
#define sonde_or_release(p, v) __atomic_fetch_or((p), (v), __ATOMIC_RELEASE)
#define sonde_swap_relaxed(p, v) __atomic_exchange_n((p), (v), __ATOMIC_RELAXED)
#define sonde_swap_acquire(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQUIRE)

/* These return the value after the change. */
#define sonde_increment_ordered(p) __atomic_add_fetch((p), 1, __ATOMIC_ACQ_REL)
#define sonde_decrement_ordered(p) __atomic_sub_fetch((p), 1, __ATOMIC_ACQ_REL)

#define sonde_fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define sonde_fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)

/* Compare and swap; true if it was swapped. Strong: a spurious failure would be counted as a lost
 * row. A failure orders nothing, except with `release`, where it acquires. */
#define sonde_cas_relaxed(p, expected, v) \
    __atomic_compare_exchange_n((p), (expected), (v), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
#define sonde_cas_acquire(p, expected, v) \
    __atomic_compare_exchange_n((p), (expected), (v), 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)
#define sonde_cas_release(p, expected, v) \
    __atomic_compare_exchange_n((p), (expected), (v), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)

#endif
