/* What happens in a forked child before any other code of the child runs.
 *
 * The mapped files, the threads and the locks of this process belong to the parent. A file that
 * keeps any of them has one line, SONDE_IN_CHILD(function), and its function lets go of them.
 * Such a function touches only what its own file owns, so their order does not matter. */
#ifndef SONDE_FORK_H
#define SONDE_FORK_H

#include <stdint.h>
#include <string.h>

/* How many forks lie between this process and the one that loaded the core: whatever was
 * remembered under another number (a process id, a thread id) is void. */
extern uint32_t sonde_forks;

/* When this process was forked, by CLOCK_MONOTONIC; 0 in the process that loaded the core. */
extern int64_t sonde_fork_ns;

/* Add a function to the list, while the core is being loaded. */
void sonde_fork_add(void (*in_child)(void));

/* Have these called in the parent, before and after each fork; for one file, while the core is being loaded. */
void sonde_fork_around(void (*before)(void), void (*after)(void));

/* For small things that these functions write to: they lie together. Each page that is written to in
 * a child has to be copied first, which takes longer than the function. */
#define SONDE_CHANGED_IN_CHILD __attribute__((section("sonde_child")))

/* Give a variable this value; one that has it already is not written to. */
#define SONDE_RESET(variable, ...)                                             \
    do {                                                                       \
        const __typeof__(variable) fresh_ = __VA_ARGS__;                       \
        if (memcmp(&(variable), &fresh_, sizeof fresh_) != 0)                  \
            (variable) = fresh_;                                               \
    } while (0)

#define SONDE_IN_CHILD(function)                                               \
    __attribute__((constructor)) static void add_##function(void)              \
    {                                                                          \
        sonde_fork_add(function);                                              \
    }

/* Have the functions of the list called in every child from now on. Returns 0 or -errno. */
int sonde_fork_watch(void);

#endif
