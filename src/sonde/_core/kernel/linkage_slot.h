/* The linkage slot through which a library calls a function that it exports itself, or one of another
 * library.
 *
 * Such a call goes through a pointer in the library's data, so that a library loaded before it
 * may replace the function. We put our function there, and take it out again. */
#ifndef SONDE_LINKAGE_SLOT_H
#define SONDE_LINKAGE_SLOT_H

#include <stdint.h>

typedef struct {
    void **at;      /* NULL: there is none */
    void *original; /* the function itself */
    void *first;    /* what the slot held: the function, or the code that looks it up at the first call */
    int look;       /* SONDE_WORD_WRITABLE or SONDE_WORD_SEALED */
} sonde_linkage_slot;

/* Find the slot of `symbol` in a library from dlopen(). `at` stays NULL if there is none, if it cannot
 * be written to, or if somebody else has taken it. Take and give back with the GIL. */
void sonde_linkage_slot_find(sonde_linkage_slot *slot, void *library, const char *symbol);

/* The same for functions that a library calls in another one, `origin`: fills in one slot for each. */
void sonde_linkage_imports_find(sonde_linkage_slot *slots, void *library, void *origin, const char *const *symbols,
                                int count);

/* Visit every slot through which a library calls one of these functions, or reads its address, and every word of
 * its data that began as one, if it does not define the function itself. A slot may hold code of the library
 * until the first call; a word of data may hold anything by now. The library is described as the loader does:
 * where it lies, and its dynamic section. */
enum { SONDE_LINKAGE_SLOT, SONDE_LINKAGE_DATA };
typedef void sonde_linkage_visit(void *context, int symbol, void **at, int kind);
void sonde_linkage_visit_imports(uintptr_t address, const void *dynamic, const char *const *symbols, int count,
                                 sonde_linkage_visit *visit, void *context);

int sonde_linkage_slot_take(sonde_linkage_slot *slot, void *ours); /* 0, or -1: it is not free, or may not be changed */
void sonde_linkage_slot_give_back(sonde_linkage_slot *slot, void *ours);

#endif
