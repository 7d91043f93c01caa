/* One line instead of a crash, for a tool whose libraries crash when they get no memory. */
#ifndef SONDE_CRASH_LINE_H
#define SONDE_CRASH_LINE_H

#include <stddef.h>

/* From now on SIGSEGV and SIGABRT write `line` to descriptor 2 and end the process with `status`.
 * NULL: they do again what they did before. The line is copied. Returns 0, or -EMSGSIZE if it is too
 * long. One call at a time; not in a recorded program. */
int sonde_crash_line_set(const char *line, size_t bytes, int status);

#endif
