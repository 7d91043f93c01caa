/* The libraries of this process, as the dynamic loader shows them. */
#ifndef SONDE_LOADER_H
#define SONDE_LOADER_H

#include <link.h>
#include <stddef.h>

/* Have the loader show its libraries, as dl_iterate_phdr() does: none is unloaded meanwhile. Returns 0; -EAGAIN: forks
 * were under way all the time.
 *
 * It waits for any other thread to which libraries are shown just now. That may be a function of Python, as of
 * ctypes.util.dllist(), which waits for the GIL: never call it with the GIL, nor in a thread for which somebody waits
 * with the GIL. One caller at a time. A forked child could load no library if another thread was shown them at the
 * fork: so a fork waits for us, and we do not begin while one is under way. `look` must not wait for other threads. */
typedef int sonde_loader_look(struct dl_phdr_info *info, size_t size, void *context);
int sonde_loader_show(sonde_loader_look *look, void *context);

/* In there: remember how far the list of libraries goes. */
void sonde_loader_note(void);

/* Were libraries loaded since that was done last? Those that were unloaded are seen only if they were the newest.
 * Returns -ENOSYS if this loader does not tell. Any thread; takes no lock. */
int sonde_loader_has_more(void);

#endif
