/* The linkage slot through which a library calls a function that it exports itself.
 *
 * Such a call goes through a pointer in the library's data, so that whoever is loaded
 * before may stand in for the function. We put ours there, and take it out again. */
#ifndef SONDE_TORCH_SEAM_H
#define SONDE_TORCH_SEAM_H

typedef struct {
    void **at;      /* NULL: there is none */
    void *original; /* the function itself */
    void *first;    /* what it held: that, or what looks it up at the first call */
} sonde_seam;

/* The slot of `symbol` in a library of dlopen's. `at` stays NULL if there is none, it cannot be
 * written to, or somebody else stands in it. */
void sonde_seam_find(sonde_seam *seam, void *library, const char *symbol);
int sonde_seam_take(sonde_seam *seam, void *ours); /* 0, or -1: it is no longer free */
void sonde_seam_give_back(sonde_seam *seam, void *ours);

#endif
