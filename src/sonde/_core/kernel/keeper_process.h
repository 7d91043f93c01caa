/* The keeper's own half: what it knows, and where it begins. */
#ifndef SONDE_KEEPER_PROCESS_H
#define SONDE_KEEPER_PROCESS_H

#include "kernel/code_range.h"
#include "kernel/keeper.h"

#define SONDE_KEEPER_NAME "sonde-keeper"

enum { SONDE_RANGES_N = 3 };

/* All of this, the strings included, lies in the memory that the keeper keeps. */
typedef struct {
    char **commands[SONDE_COMMANDS_N];
    char **envp;
    const uint64_t *beats; /* NULL: start commands[0] once, and end with it */
    int job, line;
    uintptr_t page;
    sonde_range kept[SONDE_RANGES_N]; /* by address: plan and stack, our code, the shared page */
} sonde_keeper_plan;

/* The body of the clone, which shares nothing with the job but the page `beats`. All signals must
 * be blocked. Never returns. */
int sonde_keeper_main(void *plan);

#endif
