/* Starting other programs. */
#ifndef SONDE_SPAWN_H
#define SONDE_SPAWN_H

/* Start `argv[0]` in a session of its own, as nobody's child: the caller gets no SIGCHLD and
 * nothing to wait for, and the new process inherits none of its open files, its signal mask or
 * its ignored signals. `line` becomes the standard input and output of the new process, and stays
 * open in the caller; -1: the new process has none. With `may_hold`, its descriptor 3 stands for
 * the caller where the kernel has such a thing: see pidfd_open(), a call that filters may forbid.
 * Returns 0, or -errno of the step that failed.
 * Any thread. */
int sonde_spawn(char *const argv[], char *const envp[], int line, int may_hold);

#endif
