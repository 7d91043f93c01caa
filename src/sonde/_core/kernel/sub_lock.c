/* The one lock between the main interpreter and subinterpreters. */
#include "kernel/sub_lock.h"
#include "kernel/fork.h"

#include <pthread.h>

SONDE_CHANGED_IN_CHILD static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int sonde_has_subs;

/* The thread that held it does not exist in a child. */
static void free_in_child(void) { SONDE_RESET(lock, (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER); }

SONDE_IN_CHILD(free_in_child)

void sonde_sub_lock(void) { pthread_mutex_lock(&lock); }

void sonde_sub_unlock(void) { pthread_mutex_unlock(&lock); }
