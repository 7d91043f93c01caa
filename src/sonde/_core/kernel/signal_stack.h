/* A stack for the signal handlers of the main thread.
 *
 * Where its own has run over, as in a recursion without end, there is no room for a handler on it, and Linux ends the
 * program without calling any. */
#ifndef SONDE_SIGNAL_STACK_H
#define SONDE_SIGNAL_STACK_H

/* Give the calling thread such a stack, if it is the main thread and has none. faulthandler, which brings its own, may take its
 * place and give it back. */
void sonde_signal_stack_give(void);

/* Take it away again if the calling thread has it. Its memory stays: whoever has replaced it may give it back. */
void sonde_signal_stack_take_back(void);

#endif
