/* The linkage slot through which a library calls a function that it exports itself.
 *
 * Such a call goes through a pointer in the library's data, so that whoever is loaded
 * before may stand in for the function. We put ours there, and take it out again. */
#ifndef SONDE_LINKAGE_SLOT_H
#define SONDE_LINKAGE_SLOT_H

typedef struct {
    void **at;      /* NULL: there is none */
    void *original; /* the function itself */
    void *first;    /* what it held: that, or what looks it up at the first call */
} sonde_linkage_slot;

/* The slot of `symbol` in a library of dlopen's. `at` stays NULL if there is none, it cannot be
 * written to, or somebody else stands in it. */
void sonde_linkage_slot_find(sonde_linkage_slot *slot, void *library, const char *symbol);
int sonde_linkage_slot_take(sonde_linkage_slot *slot, void *ours); /* 0, or -1: it is no longer free */
void sonde_linkage_slot_give_back(sonde_linkage_slot *slot, void *ours);

#endif
