/* Helper processes of a job that adopts orphans.
 *
 * A process that sonde starts is an orphan, so that it is nobody's child. Where the job is process
 * 1 of its namespace, or a subreaper, the kernel gives orphans to the job: os.wait() would return
 * processes that the job has never started, or wait for them for ever. There, and only there, a
 * keeper is their parent: a process of a few pages that starts, waits for and reaps them. It is
 * the job's child, but one without an exit signal, which no ordinary wait can see. */
#ifndef SONDE_KEEPER_H
#define SONDE_KEEPER_H

#include <stdint.h>
#include <sys/types.h>

enum { SONDE_COLLECTOR, SONDE_SNAPSHOT, SONDE_COMMANDS_N };

typedef struct {
    /* What can be started, and its environment. The owner's; NULL or empty: there is none. */
    char **commands[SONDE_COMMANDS_N];
    char **envp;
    int may_hold; /* what is started may hold this process: see sonde_spawn() */
    /* The rest is private. */
    pid_t pid;       /* 0: there is no keeper */
    uint64_t *beats; /* a page that is shared with it; NULL: there is none yet */
} sonde_keeper;

/* Make a keeper while this process is still small, if it adopts orphans. Returns 0 or -errno;
 * -E2BIG: the process is too large to be copied for it. */
int sonde_keeper_prepare(sonde_keeper *keeper);

/* Was this process forked from a recorded one that adopts orphans? */
int sonde_is_below_adopter(void);

/* Start a command as nobody's child, or as the keeper's. Returns 0 or -errno, as above. */
int sonde_keeper_start(sonde_keeper *keeper, int command);

/* Tell the keeper that the recording is still there, and reap keepers that have ended. Call it
 * every few seconds. */
void sonde_keeper_beat(sonde_keeper *keeper);

/* The recording ends: the keeper ends when what it has started has ended. */
void sonde_keeper_leave(sonde_keeper *keeper);

/* As sonde_spawn(); by a keeper of its own in a process that adopts orphans, which does not learn
 * whether the program could be run. */
int sonde_keeper_spawn(char *const argv[], char *const envp[], int line);

#endif
